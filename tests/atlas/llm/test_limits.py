"""Limits a minute and estimates, by the clock of the event loop and by hand."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitrail.atlas.llm import Asked, Endpoint, estimate
from vitrail.atlas.llm.estimate import duration, probe_of
from vitrail.atlas.llm.limits import Limiter


@pytest.mark.parametrize(
    ("requests", "tokens", "wanted_s"),
    [(6e3, None, 0.01), (None, 6e4, 0.02), (6e3, 6e4, 0.02), (None, None, 0.0)],
)
def test_requests_are_spread_evenly(requests: float | None, tokens: float | None, wanted_s: float) -> None:
    """Requests of 20 tokens that all come at once; the stricter limit rules."""

    async def starts() -> list[float]:
        limiter, clock = Limiter(requests, tokens), asyncio.get_running_loop().time

        async def one() -> float:
            await limiter.take(20.0)
            return clock()

        return sorted(await asyncio.gather(*(one() for _ in range(11))))

    times = asyncio.run(starts())
    assert times[-1] - times[0] >= 10 * wanted_s - 0.005
    assert times[-1] - times[0] <= 10 * wanted_s + 0.5, "a limit is no brake"


@given(lengths=st.lists(st.integers(1, 10**6), min_size=1, max_size=200), max_concurrency=st.integers(1, 100))
def test_probe_is_as_large_as_what_is_in_flight(lengths: list[int], max_concurrency: int) -> None:
    probe = probe_of(lengths, max_concurrency)
    assert len(set(probe)) == len(probe) == min(len(lengths), max(8, min(max_concurrency, 32)))
    tried = [lengths[i] for i in probe]
    assert tried == sorted(tried)


@given(lengths=st.lists(st.integers(1, 10**6), min_size=65, max_size=200), max_concurrency=st.integers(1, 100))
def test_probe_is_spread_over_the_lengths(lengths: list[int], max_concurrency: int) -> None:
    tried = [lengths[i] for i in probe_of(lengths, max_concurrency)]
    assert tried[0] <= sorted(lengths)[len(lengths) // 8]
    assert tried[-1] >= sorted(lengths)[-len(lengths) // 8]


def test_estimate_worked_out_by_hand() -> None:
    """400 characters read as 100 tokens, 10 written, 2 s each, two at once: 30 requests of 800 characters take 30 s."""
    probed = [Asked(400, 100, 10, 40, 2.0)] * 2
    endpoint = Endpoint(url="http://x", max_concurrency=2, price_in=1.0, price_out=10.0)
    found = estimate(probed, [400] * 2, [800] * 30, 5, endpoint)
    assert (found.requests, found.stored, found.tokens_in, found.tokens_out) == (30, 5, 6000, 300)
    assert (found.wall_s, found.is_counted) == (30.0, True)
    assert found.cost == pytest.approx((6000 + 3000) / 1e6)
    limited = endpoint.model_copy(update={"requests_per_minute": 10.0})
    assert estimate(probed, [400] * 2, [800] * 30, 5, limited).wall_s == 180
    limited = endpoint.model_copy(update={"tokens_per_minute": 630.0})
    assert estimate(probed, [400] * 2, [800] * 30, 5, limited).wall_s == 600


def test_estimate_of_questions_that_are_put_again_worked_out_by_hand() -> None:
    """The same two questions, one of them put twice: all is half as much again."""
    probed = [Asked(400, 100, 10, 40, 2.0)] * 3
    endpoint = Endpoint(url="http://x", max_concurrency=8, price_in=1.0, price_out=10.0, requests_per_minute=90.0)
    found = estimate(probed, [400] * 2, [800] * 30, 5, endpoint)
    assert (found.requests, found.tokens_in, found.tokens_out, found.num_probed) == (45, 9000, 450, 3)
    assert found.wall_s == 45.0, "two at once, as were tried"
    assert (
        estimate(probed, [400] * 2, [800] * 30, 5, endpoint.model_copy(update={"requests_per_minute": 30.0})).wall_s
        == 90
    )


def test_durations_are_in_words() -> None:
    assert [duration(s) for s in (0.4, 89.0, 600.0, 5401.0, 360_000.0)] == ["0 s", "89 s", "10 min", "1.5 h", "100.0 h"]
