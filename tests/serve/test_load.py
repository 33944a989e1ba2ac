"""Sixteen clients at once for half a minute: no error, every seeded answer as if alone, memory flat."""

import asyncio
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI

from tests.serve.conftest import Server, free_port
from vitrail.api import load

NUM_CLIENTS, SECONDS = 16, 30.0
PROMPTS = [
    "the river",
    "glass and lead of the window",
    "of the court and",
    "a",
    "export of goods by the ship and the map",
]
STEERS = ["", "rivers=+1.0", "glass=off", "courts=-0.7; music=+0.4"]
REQUESTS: list[dict[str, Any]] = [
    {
        "prompt": PROMPTS[number % 5],
        "max_tokens": 3 + 7 * number % 41,
        "temperature": [0.0, 0.8][number % 2],
        "seed": number,
        "extra_body": {"steer": STEERS[number % 4], "repetition_penalty": [1.0, 1.3][number // 2 % 2]},
    }
    for number in range(20)
]


@pytest.fixture(scope="module")
def busy(world: Path) -> Iterator[Server]:
    """In fp64, where a sum in another order cannot turn a choice: equality is then an exact statement."""
    running = Server(world, load(world / "model", device="cpu"), free_port(), ("--dtype", "float64"))
    running.start()
    yield running
    running.stop()


@dataclass
class Count:
    answers: int = 0
    streamed: int = 0
    left: int = 0


async def ask(client: AsyncOpenAI, request: dict[str, Any], is_streamed: bool) -> str:
    if not is_streamed:
        answer = await client.completions.create(model="model", **request)
        return str(answer.choices[0].text)
    stream = await client.completions.create(model="model", stream=True, **request)
    return "".join([chunk.choices[0].text async for chunk in stream if chunk.choices])


async def leave(client: AsyncOpenAI, request: dict[str, Any]) -> None:
    """Read a little and go: what a person does who closes the page."""
    stream = await client.completions.create(model="model", stream=True, **request | {"max_tokens": 90})
    async for _ in stream:
        break
    await stream.close()


async def visit(url: str, number: int, alone: list[str], until: float, count: Count) -> None:
    draw = random.Random(number)
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        while time.monotonic() < until:
            place = draw.randrange(len(REQUESTS))
            if draw.random() < 0.1:
                await leave(client, REQUESTS[place])
                count.left += 1
                continue
            is_streamed = draw.random() < 0.5
            assert await ask(client, REQUESTS[place], is_streamed) == alone[place], (
                f"request {place} depends on company"
            )
            count.answers += 1
            count.streamed += is_streamed


async def crowd(url: str, alone: list[str], seconds: float) -> Count:
    count, until = Count(), time.monotonic() + seconds
    await asyncio.gather(*(visit(url, number, alone, until, count) for number in range(NUM_CLIENTS)))
    return count


async def one_by_one(url: str) -> list[str]:
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        return [await ask(client, request, is_streamed=False) for request in REQUESTS]


def test_sixteen_clients_for_half_a_minute(busy: Server) -> None:
    alone = asyncio.run(one_by_one(busy.url))
    assert len(set(alone)) > 15, "the requests must differ, or equality says little"
    # The first part fills what is kept on purpose (the last answers, allocator arenas).
    first = asyncio.run(crowd(busy.url, alone, SECONDS / 2))
    before = busy.rss_bytes()
    second = asyncio.run(crowd(busy.url, alone, SECONDS / 2))
    grown = busy.rss_bytes() - before
    assert min(first.answers, second.answers) > 2 * NUM_CLIENTS
    assert second.streamed > NUM_CLIENTS
    assert first.left + second.left > 0
    assert grown < 24e6, f"{grown / 1e6:.1f} MB more after {second.answers} answers"
    assert asyncio.run(one_by_one(busy.url)) == alone
