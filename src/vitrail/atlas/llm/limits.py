"""Rate limits: requests and tokens a minute, evenly spread."""

import asyncio


class Limiter:
    """Lets requests through no faster than allowed, in the order they came.

    Requests are spread evenly and not sent in bursts: a server that counts by the second is not upset either.
    """

    def __init__(self, requests_per_minute: float | None, tokens_per_minute: float | None):
        """Set the limits.

        Args:
            requests_per_minute: None is no limit.
            tokens_per_minute: None is no limit.
        """
        self._s_per_request = 60 / requests_per_minute if requests_per_minute else 0.0
        self._s_per_token = 60 / tokens_per_minute if tokens_per_minute else 0.0
        self._free_at = 0.0

    async def take(self, num_tokens: float) -> None:
        """Wait until a request may go.

        Args:
            num_tokens: tokens it will read and write, as far as can be known.
        """
        now = asyncio.get_running_loop().time()
        start = max(now, self._free_at)
        self._free_at = start + max(self._s_per_request, num_tokens * self._s_per_token)
        if start > now:
            await asyncio.sleep(start - now)
