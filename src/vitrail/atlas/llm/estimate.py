"""What a run will cost, from a few of its own questions put to the real server.

The probe's questions are drawn evenly from those still to be asked, sorted by length, and their answers are kept like
all others: nothing is spent twice. Tokens in grow with the characters of the questions, tokens out and seconds with
their number; a question that is put again until an answer fits counts with all its requests. The figures of the probe
are carried over to the rest.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from vitrail.atlas.llm.endpoint import Endpoint

PROBE_MIN, PROBE_MAX = 8, 32
CHARS_PER_TOKEN = 4.0
"""Where the server does not count: about right for English."""


@dataclass(frozen=True)
class Asked:
    """One request that was answered.

    Attributes:
        chars: characters sent.
        tokens_in: tokens read; 0 if not counted.
        tokens_out: tokens written; 0 if not counted.
        chars_out: characters of the answer.
        wall_s: seconds until the answer, repeats included.
    """

    chars: int
    tokens_in: int
    tokens_out: int
    chars_out: int
    wall_s: float


@dataclass(frozen=True)
class Estimate:
    """What is still to come.

    Attributes:
        requests: to be sent.
        stored: questions whose answers are in the journal.
        tokens_in: that will be read.
        tokens_out: that will be written.
        cost: in the currency of the prices; None without prices.
        wall_s: time it will take.
        is_counted: tokens are the server's count; otherwise guessed from characters.
        num_probed: requests it was measured on.
    """

    requests: int
    stored: int
    tokens_in: int
    tokens_out: int
    cost: float | None
    wall_s: float
    is_counted: bool
    num_probed: int

    def __str__(self) -> str:
        tokens = "tokens" if self.is_counted else "tokens (guessed from characters)"
        price = "" if self.cost is None else f", cost {self.cost:,.2f}"
        return (
            f"{self.requests:,} requests to come ({self.stored:,} answers are stored): {self.tokens_in:,} {tokens} in, "
            f"{self.tokens_out:,} out{price}, about {duration(self.wall_s)}; measured on {self.num_probed} requests"
        )


def probe_of(lengths: Sequence[int], max_concurrency: int) -> list[int]:
    """Which questions to try first: as many as are in flight together, 8 at least and 32 at most.

    Args:
        lengths: characters of each question.
        max_concurrency: requests in flight.

    Returns:
        their places, evenly spread over the lengths.
    """
    order = sorted(range(len(lengths)), key=lambda i: (lengths[i], i))
    size = min(max(PROBE_MIN, min(max_concurrency, PROBE_MAX)), len(order))
    return [order[(2 * i + 1) * len(order) // (2 * size)] for i in range(size)]


def estimate(
    probed: Sequence[Asked], tried: Sequence[int], lengths: Sequence[int], stored: int, endpoint: Endpoint
) -> Estimate:
    """Carry the probe's figures over to what is still to be asked.

    Args:
        probed: the probe's requests, at least one; several of a question that was put again.
        tried: characters of each question of the probe.
        lengths: characters of each question to come.
        stored: questions whose answers are there.
        endpoint: concurrency, limits and prices.

    Returns:
        the estimate.
    """
    is_counted = all(asked.tokens_in for asked in probed)
    read = sum(a.tokens_in if is_counted else a.chars / CHARS_PER_TOKEN for a in probed)
    written = sum(a.tokens_out if is_counted else a.chars_out / CHARS_PER_TOKEN for a in probed)
    times_as_many = len(lengths) / len(tried)
    requests = len(probed) * times_as_many
    tokens_in = read / sum(tried) * sum(lengths)
    tokens_out = written * times_as_many
    in_flight = min(endpoint.max_concurrency, len(tried))  # more at once than were tried may not be faster
    wall_s = max(
        sum(a.wall_s for a in probed) * times_as_many / in_flight,
        requests * 60 / endpoint.requests_per_minute if endpoint.requests_per_minute else 0.0,
        (tokens_in + tokens_out) * 60 / endpoint.tokens_per_minute if endpoint.tokens_per_minute else 0.0,
    )
    cost = price(tokens_in, tokens_out, endpoint)
    return Estimate(
        requests=round(requests),
        stored=stored,
        tokens_in=round(tokens_in),
        tokens_out=round(tokens_out),
        cost=cost,
        wall_s=wall_s,
        is_counted=is_counted,
        num_probed=len(probed),
    )


def price(tokens_in: int | float, tokens_out: int | float, endpoint: Endpoint) -> float | None:
    """What tokens cost.

    Args:
        tokens_in: read.
        tokens_out: written.
        endpoint: prices of a million.

    Returns:
        the price, or None where one of the prices is not known.
    """
    if endpoint.price_in is None or endpoint.price_out is None:
        return None
    return (tokens_in * endpoint.price_in + tokens_out * endpoint.price_out) / 1e6


def duration(seconds: float) -> str:
    """Seconds in words: "40 s", "12 min", "3.5 h".

    Args:
        seconds: any length.

    Returns:
        text.
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
