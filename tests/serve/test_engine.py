"""The engine: answers in company are answers alone; who leaves stops work; nothing waits for ever."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from vitrail.api import LoadedModel, load
from vitrail.errors import ConceptNotFound, NonFiniteLogits, PromptTooLong
from vitrail.generate import Sampling
from vitrail.serve.engine import Engine, Finished, Job, Overloaded, Progress, Stopping, Ticket
from vitrail.serve.errors import told
from vitrail.steer import Steer, parse_steers

STEERS = ["", "rivers=+1.0", "glass=off", "courts=-0.7; music=+0.4", "discovered:#3=+1"]


@pytest.fixture(scope="module")
def model(world: Path) -> LoadedModel:
    """fp64: equality across batches is then an exact statement."""
    return load(world / "model", device="cpu", dtype="float64")


@pytest.fixture
def engine(model: LoadedModel) -> Iterator[Engine]:
    running = Engine(model, max_batch=4)
    running.start()
    yield running
    running.close()


def job(model: LoadedModel, number: int, **changes: Any) -> Job:
    words = "the river and the glass of the court and the map of birds"
    prompt = model.prompt_ids(words[: 9 + 5 * (number % 9)])
    sampling = {"max_new_tokens": 5 + 7 * number % 40, "temperature": 0.8, "seed": number} | changes
    steers = tuple(parse_steers(STEERS[number % len(STEERS)]))
    return Job(prompt, Sampling.parse(sampling), steers)


async def answer(engine: Engine, wanted: Job) -> tuple[str, Finished]:
    text = ""
    async for event in await engine.submit(wanted):
        text += event.text
        if isinstance(event, Finished):
            return text, event
    raise AssertionError("no end")


def test_many_at_once_are_each_as_if_alone(model: LoadedModel, engine: Engine) -> None:
    jobs = [job(model, number) for number in range(23)]

    async def together() -> list[tuple[str, Finished]]:
        return await asyncio.gather(*(answer(engine, wanted) for wanted in jobs))

    for wanted, (text, finished) in zip(jobs, asyncio.run(together()), strict=True):
        alone = model.continue_prompt(model.tokenizer.decode(wanted.prompt_ids), wanted.sampling, list(wanted.steers))
        assert finished.trace.token_ids == alone.token_ids
        filled = [
            [(commit.positions, commit.tokens) for commit in trace.commits] for trace in (finished.trace, alone.trace)
        ]
        assert filled[0] == filled[1], "the order of denoising is part of the answer"
        assert text == alone.text
        assert finished.reason == "length"


def test_steps_come_as_they_happen(model: LoadedModel, engine: Engine) -> None:
    async def events() -> list[Progress | Finished]:
        return [event async for event in await engine.submit(job(model, 3, max_new_tokens=20))]

    *steps, end = asyncio.run(events())
    assert isinstance(end, Finished)
    commits = [step.commit for step in steps if isinstance(step, Progress)]
    assert tuple(commits) == end.trace.commits
    tokens = [token for step in steps if isinstance(step, Progress) for token in step.tokens]
    assert tuple(tokens) == end.trace.token_ids


def test_a_stop_string_ends_the_answer_and_is_not_in_it(model: LoadedModel, engine: Engine) -> None:
    free = job(model, 5, max_new_tokens=60)
    text, _ = asyncio.run(answer(engine, free))
    stop = text[len(text) // 2 : len(text) // 2 + 3]
    cut, finished = asyncio.run(answer(engine, Job(free.prompt_ids, free.sampling, free.steers, (stop,))))
    assert cut == text[: text.index(stop)]
    assert finished.reason == "stop"
    assert len(finished.trace.token_ids) < 60


def test_a_reader_that_leaves_stops_the_work(model: LoadedModel, engine: Engine) -> None:
    async def leave() -> int:
        ticket = await engine.submit(job(model, 1, max_new_tokens=100))
        await anext(ticket)
        ticket.cancel()
        while engine.num_active:
            await asyncio.sleep(0.005)
        return engine.tokens_written

    assert asyncio.run(leave()) < 100


def test_a_full_queue_refuses_and_those_who_left_make_room(model: LoadedModel) -> None:
    engine = Engine(model, max_batch=1, max_waiting=2)  # not started: nothing is taken from the queue

    async def crowd() -> None:
        tickets = [await engine.submit(job(model, number)) for number in range(2)]
        with pytest.raises(Overloaded):
            await engine.submit(job(model, 2))
        tickets[0].cancel()
        await engine.submit(job(model, 2))

    asyncio.run(crowd())
    engine.close()


def test_closing_fails_what_is_in_flight(model: LoadedModel) -> None:
    engine = Engine(model, max_batch=1)
    engine.start()

    async def interrupted() -> list[BaseException | str]:
        tickets: list[Ticket] = [await engine.submit(job(model, n, max_new_tokens=100)) for n in range(3)]
        await anext(tickets[0])
        engine.close()
        return await asyncio.gather(*(drain(ticket) for ticket in tickets), return_exceptions=True)

    async def drain(ticket: Ticket) -> str:
        return "".join([event.text async for event in ticket])

    assert all(isinstance(result, Stopping) for result in asyncio.run(interrupted()))
    with pytest.raises(Stopping):
        asyncio.run(engine.submit(job(model, 0)))


def test_bad_requests_are_refused_at_the_door(model: LoadedModel, engine: Engine) -> None:
    with pytest.raises(ConceptNotFound, match="did you mean 'rivers'"):
        asyncio.run(engine.submit(Job((1, 9), Sampling(), (Steer("river"),))))
    with pytest.raises(PromptTooLong, match="128"):
        asyncio.run(engine.submit(Job(tuple([9] * 120), Sampling())))


def test_a_failure_ends_its_batch_and_not_the_engine(model: LoadedModel, engine: Engine) -> None:
    """A fault of the network itself: everybody in the batch is told, and the next request is served."""
    weight = model.network.transformer.lm_head.weight
    broken, weight.data = weight.data, torch.zeros(1, 1)
    try:
        with pytest.raises(Exception, match=r"shape|size"):
            asyncio.run(answer(engine, job(model, 2)))
    finally:
        weight.data = broken
    text, _ = asyncio.run(answer(engine, job(model, 2)))
    assert text


def test_other_work_runs_beside_generation(model: LoadedModel, engine: Engine) -> None:
    async def both() -> tuple[int, tuple[str, Finished]]:
        def work() -> int:
            time.sleep(0.05)
            return 7

        return await asyncio.gather(engine.run(work), answer(engine, job(model, 0)))

    number, (text, _) = asyncio.run(both())
    assert number == 7
    assert text


def test_logits_that_are_not_finite_fail_their_answer_in_one_line(world: Path) -> None:
    damaged = load(world / "model", device="cpu", dtype="float64")
    with torch.no_grad():
        dict(damaged.network.named_parameters())["transformer.ln_f.weight"][0] = torch.nan
    running = Engine(damaged)
    running.start()
    try:
        with pytest.raises(NonFiniteLogits, match="are not finite") as fault:
            asyncio.run(answer(running, job(damaged, 1)))
    finally:
        running.close()
    error = told(fault.value, retry_after_s=1)
    assert (error.status_code, error.body["error"]["code"]) == (500, "non_finite_logits")
    assert "logits at position" in error.body["error"]["message"]
