"""Counts for Prometheus: requests, times, tokens, and what waits."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from vitrail.serve.engine import Engine

_SECONDS = (0.005, 0.02, 0.1, 0.5, 1, 2, 5, 10, 30, 60, 120)


class Meters:
    """The counts of one server."""

    def __init__(self, engine: Engine) -> None:
        """Begin at zero.

        Args:
            engine: tells what waits and what is being written.
        """
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "vitrail_requests", "Requests, by address and status", ["path", "status"], registry=self._registry
        )
        self._seconds = Histogram(
            "vitrail_request_seconds", "Time to answer", ["path"], buckets=_SECONDS, registry=self._registry
        )
        self._prompt_tokens = Counter("vitrail_prompt_tokens", "Tokens of prompts", registry=self._registry)
        self._answers = Counter(
            "vitrail_answers", "Answers finished, by their end", ["reason"], registry=self._registry
        )
        tokens = Gauge("vitrail_written_tokens", "Tokens written since the start", registry=self._registry)
        tokens.set_function(lambda: engine.tokens_written)
        active = Gauge("vitrail_active_answers", "Answers being written", registry=self._registry)
        active.set_function(lambda: engine.num_active)
        waiting = Gauge("vitrail_waiting_answers", "Answers that wait for their turn", registry=self._registry)
        waiting.set_function(lambda: engine.num_waiting)

    def count_request(self, path: str, status: int, seconds: float) -> None:
        """Count an answered request.

        Args:
            path: the address's pattern.
            status: of the answer.
            seconds: until its end.
        """
        self._requests.labels(path, str(status)).inc()
        self._seconds.labels(path).observe(seconds)

    def count_prompts(self, num_tokens: int) -> None:
        """Count the prompts of a request.

        Args:
            num_tokens: of all of them.
        """
        self._prompt_tokens.inc(num_tokens)

    def count_answer(self, reason: str) -> None:
        """Count a finished answer.

        Args:
            reason: stop or length.
        """
        self._answers.labels(reason).inc()

    def text(self) -> str:
        """All counts in Prometheus' format."""
        return generate_latest(self._registry).decode()
