"""Signals that end a run after the step they came in: SIGTERM of a scheduler, SIGINT of a user."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from vitrail.errors import Stopped


@dataclass
class StopRequest:
    """Whether a signal came, and which.

    Attributes:
        number: of the signal; 0 while none came.
    """

    number: int = 0

    def reason(self, step: int) -> BaseException:
        """What to raise once the checkpoint is written.

        Args:
            step: steps done.

        Returns:
            `KeyboardInterrupt` for SIGINT, `Stopped` for SIGTERM (also where another rank had the signal).
        """
        if self.number == signal.SIGINT:
            return KeyboardInterrupt()
        return Stopped(f"stopped by SIGTERM after step {step:,}, its checkpoint is written; the same command goes on")


@contextmanager
def stop_signals() -> Iterator[StopRequest]:
    """Take note of SIGINT and SIGTERM instead of dying of them; a second SIGINT interrupts at once.

    Outside the main thread signals cannot be caught, and keep their effect.

    Yields:
        the request, filled in when a signal comes.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return

    def note(number: int, frame: FrameType | None) -> None:
        if request.number == signal.SIGINT and number == signal.SIGINT:
            raise KeyboardInterrupt
        request.number = number

    # Where the parent shell ignores SIGINT (a background job), it stays ignored.
    caught = [s for s in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(s) is not signal.SIG_IGN]
    before = {number: signal.signal(number, note) for number in caught}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
