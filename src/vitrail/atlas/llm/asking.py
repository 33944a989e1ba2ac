"""Asking many questions of a language model: at once, within limits, and never twice.

A question that the journal holds an answer to is not put. The others go out together, as many as the endpoint allows;
each answer is in the journal before it is used. A first few tell what the rest will cost. Every question ends with a
verdict, and verdicts are counted; where too many are faults, or the server is gone, the run stops with one line and
the journal goes on from there.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vitrail.atlas.llm.answers import A, Verdict, schema_of, verdict_of
from vitrail.atlas.llm.client import Client, Rejected, Unanswered
from vitrail.atlas.llm.endpoint import Endpoint, LanguageModel
from vitrail.atlas.llm.estimate import CHARS_PER_TOKEN, Asked, duration, estimate, price, probe_of
from vitrail.atlas.llm.journal import Journal, Reply, key_of
from vitrail.atlas.llm.limits import Limiter
from vitrail.errors import RunFailed

Messages = tuple[dict[str, str], ...]
"""One question: system and user message."""

UNANSWERED_IN_ROW = 5
"""So many questions in a row without any reply, each repeated by the client: the server is gone."""
MIN_JUDGED, CLEARLY = 50, 2.0
"""Midway a run stops if, of so many questions or more, the share of faults is so many times the limit."""
PROGRESS_S = 30.0
EXAMPLE_CHARS = 120

logger = logging.getLogger("vitrail.atlas.llm")


@dataclass
class Tally:
    """What became of all questions so far.

    Attributes:
        verdicts: questions by how they ended; the same whether answers came from the server or the journal.
        examples: the first message or text of each kind of fault.
        requests: answers that came from the server now.
        stored: answers that came from the journal.
        tokens_in: read by the requests, as far as the server counts.
        tokens_out: written by them.
        wall_s: seconds spent on them.
    """

    verdicts: Counter[Verdict] = field(default_factory=Counter)
    examples: dict[Verdict, str] = field(default_factory=dict)
    requests: int = 0
    stored: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    wall_s: float = 0.0

    @property
    def faults(self) -> int:
        """Questions without a usable answer."""
        return self.verdicts.total() - self.verdicts[Verdict.answered]

    def counts(self) -> dict[str, int]:
        """Questions by verdict, for a manifest: only those that occurred."""
        return {verdict.value: self.verdicts[verdict] for verdict in Verdict if self.verdicts[verdict]}

    def note(self, verdict: Verdict, example: str) -> None:
        """Count the end of a question.

        Args:
            verdict: how it ended.
            example: what was said, to be shown for the first of its kind.
        """
        self.verdicts[verdict] += 1
        if verdict is not Verdict.answered:
            line = " ".join(example[:EXAMPLE_CHARS].split())
            self.examples.setdefault(verdict, "".join(c if c.isprintable() else "?" for c in line))

    def faults_in_words(self) -> str:
        """The faults by kind, each with its first example: `3 malformed (the first: "…"), 1 refused`."""
        parts = []
        for verdict, count in Counter(self.verdicts).most_common():
            if verdict is not Verdict.answered and count:
                example = self.examples.get(verdict, "")
                parts.append(f"{count:,} {verdict.value}" + (f' (the first: "{example}")' if example else ""))
        return ", ".join(parts) or "no faults"


class Asker:
    """Puts questions to one language model."""

    def __init__(
        self, model: LanguageModel, endpoint: Endpoint, journal: Journal, say: Callable[[str], None] = logger.info
    ):
        """Hold what is needed; nothing is sent. Damaged lines of the journal are told of.

        Args:
            model: what is asked, and how.
            endpoint: where, how fast, at what price.
            journal: answers so far; new ones are added.
            say: takes the estimate, the progress and the final count, a line each.
        """
        self.model, self.endpoint, self.journal, self.say = model, endpoint, journal, say
        self.tally = Tally()
        if journal.num_damaged:
            say(f"{journal.path}: damaged lines passed over: {journal.num_damaged:,}; what they held is asked again")

    def ask(self, questions: Sequence[Messages], answer: type[A], what: str) -> list[A | None]:
        """Put questions; equal ones are put once.

        Args:
            questions: n of them, in any order.
            answer: what an answer must be.
            what: plural noun for the lines that are said, such as "chunks".

        Returns:
            n answers in the order of the questions; None where there is none.

        Raises:
            ConfigError: no `openai` package, a wrong key or address.
            RunFailed: the server is gone, too many faults, too high a cost, or a full disk; answers are kept.
        """
        unique = {key_of({"messages": list(messages)}): messages for messages in questions}
        run = _Run(self, list(unique.values()), answer, what)
        asyncio.run(run.whole())
        found = dict(zip(unique, run.results, strict=True))
        return [found[key_of({"messages": list(messages)})] for messages in questions]


class _Run:
    """One call of `ask`."""

    def __init__(self, asker: Asker, questions: list[Messages], answer: type[A], what: str):
        self._asker, self._questions, self._answer, self._what = asker, questions, answer, what
        self._model, self._endpoint, self._journal = asker.model, asker.endpoint, asker.journal
        self._limiter = Limiter(asker.endpoint.requests_per_minute, asker.endpoint.tokens_per_minute)
        self._tally = Tally()
        self._asked: list[Asked] = []
        self._unanswered_in_row = self._num_from_journal = 0
        self._said_at = self._started = time.monotonic()
        self.results: list[Any] = [None] * len(questions)

    async def whole(self) -> None:
        """Settle every question, from the journal or the server."""
        pending = [i for i in range(len(self._questions)) if not self._settle_from_journal(i)]
        self._num_from_journal = len(self._questions) - len(pending)
        try:
            if pending:
                client = Client(self._endpoint)
                try:
                    await self._put(client, pending)
                finally:
                    await client.close()
        finally:
            self._add_up()
        self._asker.say(self._summary())
        self._stop_if_faulty(at_end=True)

    async def _put(self, client: Client, pending: list[int]) -> None:
        probe = [pending[i] for i in probe_of([self._chars(i) for i in pending], self._endpoint.max_concurrency)]
        await self._drain(client, probe)
        rest = sorted(set(pending) - set(probe))
        if rest and self._asked:
            self._show_estimate(probe, rest)
        await self._drain(client, rest)

    def _show_estimate(self, probe: Sequence[int], rest: Sequence[int]) -> None:
        tried, coming_chars = ([self._chars(i) for i in places] for places in (probe, rest))
        coming = estimate(self._asked, tried, coming_chars, len(self._questions) - len(rest), self._endpoint)
        self._asker.say(f"{self._what}: {coming}")
        limit = self._endpoint.max_cost
        if limit is not None and coming.cost is not None and coming.cost > limit:
            raise RunFailed(
                f"the estimated cost of the {self._what} is {coming.cost:,.2f}, the limit {limit:,.2f}; raise "
                f"--endpoint.max_cost or ask less; {self._kept()}"
            )

    async def _drain(self, client: Client, places: Sequence[int]) -> None:
        todo = iter(places)

        async def work() -> None:
            for i in todo:
                await self._settle(client, i)
                self._stop_if_faulty()
                self._show_progress()

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(self._endpoint.max_concurrency, len(places))):
                    group.create_task(work())
        except ExceptionGroup as faults:
            raise faults.exceptions[0] from None

    def _settle_from_journal(self, i: int) -> bool:
        for attempt in range(self._model.attempts):
            reply = self._journal.get(key_of(self._request(i, attempt)))
            if reply is None:
                return False
            self._tally.stored += 1
            if self._take(i, attempt, reply):
                return True
        return True

    async def _settle(self, client: Client, i: int) -> None:
        for attempt in range(self._model.attempts):
            request = self._request(i, attempt)
            key = key_of(request)
            reply = self._journal.get(key)
            if reply is None:
                try:
                    reply = await self._sent(client, request, self._chars(i))
                except Rejected as fault:
                    return self._tally.note(Verdict.rejected, str(fault))
                except Unanswered as fault:
                    return self._note_unanswered(str(fault))
                self._journal.put(key, reply)
            if self._take(i, attempt, reply):
                return None
        return None

    async def _sent(self, client: Client, request: Mapping[str, Any], chars: int) -> Reply:
        await self._limiter.take(chars / CHARS_PER_TOKEN + self._usual_tokens_out())
        started = time.monotonic()
        reply = await client.complete({key: value for key, value in request.items() if key != "attempt"})
        self._unanswered_in_row = 0
        self._tally.requests += 1
        wall_s = time.monotonic() - started
        self._asked.append(Asked(chars, reply.tokens_in, reply.tokens_out, len(reply.text), wall_s))
        return reply

    def _take(self, i: int, attempt: int, reply: Reply) -> bool:
        """Judge a reply; true if the question is settled by it."""
        verdict, answer = verdict_of(reply, self._answer)
        is_last = attempt + 1 == self._model.attempts
        if verdict is Verdict.answered or is_last:
            self.results[i] = answer
            self._tally.note(verdict, reply.refusal or reply.text)
        return verdict is Verdict.answered or is_last

    def _note_unanswered(self, message: str) -> None:
        self._tally.note(Verdict.failed, message)
        self._unanswered_in_row += 1
        if self._unanswered_in_row >= UNANSWERED_IN_ROW:
            raise RunFailed(
                f"{self._endpoint.url}: no reply to {UNANSWERED_IN_ROW} questions in a row ({message}); "
                f"{self._kept()}; run the same command again to go on"
            )

    def _stop_if_faulty(self, *, at_end: bool = False) -> None:
        faults, ended = self._tally.faults, self._tally.verdicts.total()
        limit = self._endpoint.max_fault_share * ended
        if faults <= limit or (not at_end and (ended < MIN_JUDGED or faults <= min(CLEARLY * limit, 0.9 * ended))):
            return
        raise RunFailed(
            f"{self._endpoint.url}: {faults:,} of {ended:,} {self._what} got no usable answer: "
            f"{self._tally.faults_in_words()}; check model and prompt, or raise --endpoint.max_fault_share "
            f"({self._endpoint.max_fault_share:g}); {self._kept()}"
        )

    def _request(self, i: int, attempt: int) -> dict[str, Any]:
        model = self._model
        request: dict[str, Any] = {
            **model.extra,
            "model": model.model,
            "messages": list(self._questions[i]),
            "max_tokens": model.max_tokens,
            "attempt": attempt,
        }
        if model.temperature is not None:
            request["temperature"] = model.temperature
        if model.seed is not None:
            request["seed"] = model.seed + attempt
        if model.structured == "json_schema":
            schema = {"name": "answer", "strict": True, "schema": schema_of(self._answer)}
            request["response_format"] = {"type": "json_schema", "json_schema": schema}
        elif model.structured == "json_object":
            request["response_format"] = {"type": "json_object"}
        return request

    def _chars(self, i: int) -> int:
        return sum(len(message["content"]) for message in self._questions[i])

    def _usual_tokens_out(self) -> float:
        recent = self._asked[-100:]
        return sum(a.tokens_out or a.chars_out / CHARS_PER_TOKEN for a in recent) / len(recent) if recent else 100.0

    def _show_progress(self) -> None:
        now = time.monotonic()
        if now - self._said_at >= PROGRESS_S:
            self._said_at = now
            done, total = self._tally.verdicts.total(), len(self._questions)
            left = (now - self._started) / max(done - self._num_from_journal, 1) * (total - done)
            faults = f", {self._tally.faults:,} faults" if self._tally.faults else ""
            self._asker.say(f"{self._what}: {done:,} of {total:,}{faults}, about {duration(left)} left")

    def _summary(self) -> str:
        tally, total = self._tally, len(self._questions)
        spent = price(tally.tokens_in, tally.tokens_out, self._endpoint)
        return (
            f"{self._what}: {tally.verdicts[Verdict.answered]:,} of {total:,} answered by {self._model.model}; "
            f"{tally.faults_in_words()}; {tally.requests:,} requests, {tally.stored:,} stored answers, "
            f"{tally.tokens_in:,} tokens in, {tally.tokens_out:,} out"
            + ("" if spent is None else f", cost {spent:,.2f}")
            + f", {duration(tally.wall_s)}"
        )

    def _kept(self) -> str:
        answered, total = self._tally.verdicts[Verdict.answered], len(self._questions)
        return f"{answered:,} of {total:,} are answered and kept in {self._journal.path}"

    def _add_up(self) -> None:
        """Close this run's count and add it to the asker's."""
        own, total = self._tally, self._asker.tally
        own.tokens_in = sum(asked.tokens_in for asked in self._asked)
        own.tokens_out = sum(asked.tokens_out for asked in self._asked)
        own.wall_s = time.monotonic() - self._started
        total.verdicts.update(own.verdicts)
        total.examples = own.examples | total.examples
        for name in ("requests", "stored", "tokens_in", "tokens_out", "wall_s"):
            setattr(total, name, getattr(total, name) + getattr(own, name))
