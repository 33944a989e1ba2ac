"""From a request to the answers that the engine writes: prompts, seeds, limits, steering."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from vitrail.errors import VitrailError
from vitrail.generate import Sampling
from vitrail.serve.engine import Job, Ticket
from vitrail.serve.errors import refused
from vitrail.serve.openai_schemas import Prompt, Sampled
from vitrail.serve.schemas import MAX_STRENGTH, ExplainOptions
from vitrail.serve.service import Service
from vitrail.settings import MAX_SEED
from vitrail.steer import Steer, parse_steers

DEFAULT_TOKENS = 64

PromptIds = tuple[int, ...]


@dataclass(frozen=True)
class Wanted:
    """The answers that a request asks for.

    Attributes:
        id: name of the answer.
        jobs: one an answer, prompts in order.
        prompt_tokens: of all prompts.
        has_logprobs: whether log-probabilities are reported.
        has_commits: whether the order of denoising is.
        explain: how much to explain; None for not at all.
    """

    id: str
    jobs: list[Job]
    prompt_tokens: int
    has_logprobs: bool
    has_commits: bool
    explain: ExplainOptions | None


def wanted(
    service: Service,
    asked: Sampled,
    prompts: Sequence[PromptIds],
    *,
    prefix: str,
    max_tokens: int | None,
    alternatives: int | None,
) -> Wanted:
    """Turn a request into answers to write.

    Args:
        service: the server.
        asked: the request.
        prompts: its prompts as ids.
        prefix: of the answer's name.
        max_tokens: length of the answers; None for the default.
        alternatives: most likely tokens to report; None for no log-probabilities.

    Returns:
        the answers.

    Raises:
        ApiError: a value that the server does not allow.
    """
    service.require_name(asked.model)
    n = asked.n or 1
    limits = service.settings
    at_most(n, limits.max_n, "n")
    if n * len(prompts) > limits.max_choices:
        raise refused(f"{len(prompts)} prompts times n = {n} is more than {limits.max_choices} answers", "n")
    if asked.stream_options is not None and not asked.stream:
        raise refused("stream_options: only with stream: true", "stream_options")
    explain = _explain_options(asked)
    if explain is not None:
        service.check_explain(explain)
    seed = secrets.randbelow(MAX_SEED + 1) if asked.seed is None else asked.seed
    lengths = [_num_new(service, len(prompt), max_tokens) for prompt in prompts]
    steers, stop = _steers(service, asked), _stop(service, asked)
    jobs = [
        Job(prompt, _sampling(asked, length, (seed + place) % (MAX_SEED + 1), alternatives or 0), steers, stop)
        for prompt, length in zip(prompts, lengths, strict=True)
        for place in range(n)
    ]
    return Wanted(
        id=f"{prefix}-{secrets.token_hex(12)}",
        jobs=jobs,
        prompt_tokens=sum(map(len, prompts)),
        has_logprobs=alternatives is not None,
        has_commits=asked.commits,
        explain=explain,
    )


async def submit(service: Service, jobs: Sequence[Job]) -> list[Ticket]:
    """Put all answers of a request in the queue, or none.

    Args:
        service: the server.
        jobs: the answers.

    Returns:
        their tickets.

    Raises:
        Exception: the first that could not be taken; the others are withdrawn.
    """
    tickets: list[Ticket] = []
    try:
        for job in jobs:
            tickets.append(await service.engine.submit(job))
    except BaseException:
        for ticket in tickets:
            ticket.cancel()
        raise
    return tickets


def read_prompts(service: Service, prompt: Prompt) -> list[PromptIds]:
    """The prompts of a completion request as ids.

    Args:
        service: the server.
        prompt: a text, several, ids, or several lists of them.

    Returns:
        ids of each.

    Raises:
        ApiError: too many or too long, or ids that a prompt may not hold.
    """
    if isinstance(prompt, str):
        return [text_ids(service, prompt, "prompt")]
    ids = [token for token in prompt if isinstance(token, int)]
    if ids:
        return [_checked_ids(service, ids, "prompt")]
    at_most(len(prompt), service.settings.max_prompts, "prompt", "prompts")
    num_chars = sum(len(part) for part in prompt if isinstance(part, str))
    at_most(num_chars, service.settings.max_prompt_chars, "prompt", "characters")
    return [
        text_ids(service, part, f"prompt[{place}]")
        if isinstance(part, str)
        else _checked_ids(service, cast(list[int], part), f"prompt[{place}]")
        for place, part in enumerate(prompt)
    ]


def text_ids(service: Service, text: str, param: str) -> PromptIds:
    """A text as the model reads it; control tokens typed in it are text.

    Args:
        service: the server.
        text: the prompt.
        param: what to call it.

    Returns:
        its ids.

    Raises:
        ApiError: too long, or not Unicode text.
    """
    at_most(len(text), service.settings.max_prompt_chars, param, "characters")
    try:
        return service.model.prompt_ids(text)
    except VitrailError as error:
        raise refused(f"{param}: {error}", param) from error


def at_most(count: int, limit: int, param: str, unit: str = "") -> None:
    """Refuse a number beyond a limit.

    Args:
        count: the number.
        limit: the largest that is allowed.
        param: the field.
        unit: what is counted.

    Raises:
        ApiError: it is larger.
    """
    if count > limit:
        number = f"{count} {unit}".strip()
        raise refused(f"{param}: {number} is more than the {limit} that this server allows", param)


def _checked_ids(service: Service, ids: Sequence[int], param: str) -> PromptIds:
    tokenizer = service.model.tokenizer
    for place, token in enumerate(ids):
        if not 0 <= token < tokenizer.vocab_size:
            last = tokenizer.vocab_size - 1
            raise refused(f"{param}[{place}]: id {token} is outside the vocabulary, 0 to {last}", param)
        if token in (tokenizer.pad_id, tokenizer.mask_id):
            raise refused(f"{param}[{place}]: id {token} is {tokenizer.token_text(token)}, which no text holds", param)
    return tuple(ids)


def _num_new(service: Service, num_prompt: int, max_tokens: int | None) -> int:
    room = service.context_tokens - num_prompt
    if room < 1:
        raise _too_long(service, num_prompt, max_tokens or 1)
    if max_tokens is None:
        return min(DEFAULT_TOKENS, room)
    at_most(max_tokens, max(service.settings.max_new_tokens, room), "max_tokens", "tokens")
    if max_tokens > room:
        raise _too_long(service, num_prompt, max_tokens)
    at_most(max_tokens, service.settings.max_new_tokens, "max_tokens", "tokens")
    return max_tokens


def _too_long(service: Service, num_prompt: int, num_new: int) -> Exception:
    context = service.context_tokens
    return refused(
        f"this model's context holds {context} tokens; the prompt has {num_prompt} and {num_new} more are asked for, "
        f"{num_prompt + num_new - context} too many; shorten the prompt or lower max_tokens",
        "prompt" if num_prompt >= context else "max_tokens",
        "context_length_exceeded",
    )


def _sampling(asked: Sampled, num_new: int, seed: int, alternatives: int) -> Sampling:
    wanted = {name: value for name in _PASSED_ON if (value := getattr(asked, name)) is not None}
    values = {
        "temperature": 1.0,
        **wanted,
        "max_new_tokens": num_new,
        "seed": seed,
        "allowed_specials": ("eoc", "eos"),
        "num_alternatives": alternatives,
    }
    try:
        return Sampling.parse(values, where="request")
    except VitrailError as error:
        param = next((name for name in _PASSED_ON if name in str(error)), None)
        raise refused(str(error), param) from error


_PASSED_ON = (
    *("top_p", "top_k", "tokens_per_step", "steps_per_block", "threshold", "factor"),
    *("order", "guidance", "repetition_penalty", "temperature"),
)


def _steers(service: Service, asked: Sampled) -> tuple[Steer, ...]:
    limits = service.settings
    try:
        if isinstance(asked.steer, str):
            at_most(len(asked.steer), limits.max_steer_chars, "steer", "characters")
            steers = parse_steers(asked.steer)
        else:
            steers = [part.spec() for part in asked.steer or ()]
    except VitrailError as error:
        raise refused(str(error), "steer") from error
    at_most(len(steers), limits.max_steers, "steer", "concepts")
    named = set[str]()
    for steer in steers:
        concept = str(steer).rpartition("=")[0]
        if abs(steer.strength) > MAX_STRENGTH:
            raise refused(f"steer: strength {steer.strength:+g} of '{concept}' is beyond ±{MAX_STRENGTH}", "steer")
        if concept.casefold() in named:
            raise refused(f"steer: '{concept}' is named twice; give it one strength", "steer")
        named.add(concept.casefold())
    if steers and service.calibration is None:
        message = "steer: this model has no calibrated strengths yet; whoever runs it: `vitrail steer calibrate`"
        raise refused(message, "steer", "not_calibrated")
    return tuple(steers)


def _stop(service: Service, asked: Sampled) -> tuple[str, ...]:
    limits = service.settings
    stops = (asked.stop,) if isinstance(asked.stop, str) else tuple(asked.stop or ())
    at_most(len(stops), limits.max_stop, "stop", "texts")
    for stop in stops:
        if not stop:
            raise refused("stop: an empty text would end every answer at once", "stop")
        at_most(len(stop), limits.max_stop_chars, "stop", "characters")
    return stops


def _explain_options(asked: Sampled) -> ExplainOptions | None:
    if isinstance(asked.explain, ExplainOptions):
        return asked.explain
    return ExplainOptions() if asked.explain else None
