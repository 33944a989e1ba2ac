"""What the tour says while it works: stages, results in a few words, and the time that is left.

On a terminal a live line shows the running stage, its share done and the time left; elsewhere each
stage prints a line when it begins and one when it ends. Everything goes to the given console (stderr).
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TaskID, TextColumn
from rich.text import Text

PRIOR_SHARE = 0.2
"""The estimates count as this share of the tour already run at their pace: early stages are unlike training."""

SEEN_SHARE = 0.05
"""Share of a stage after which its own speed tells when it ends."""


class Guide:
    """Keeps the time of a tour of stages with estimated lengths.

    What is left of the running stage follows from its own speed where it tells its share; all else from the
    estimates, scaled by how this machine did so far.
    """

    def __init__(self, estimates_s: Mapping[str, float], console: Console) -> None:
        """Start the clock.

        Args:
            estimates_s: stage → expected seconds on two idle cores, in order.
            console: where to write.
        """
        self._waiting_s = dict(estimates_s)
        self._prior_s = PRIOR_SHARE * sum(estimates_s.values())
        self._running, self._fraction = "", 0.0
        self._names = list(estimates_s)
        self._console = console
        self._done_s = 0.0
        self._spent_s = 0.0
        self._started = time.monotonic()
        self._bar: tuple[Progress, TaskID] | None = None

    def skip(self, name: str, result: str) -> None:
        """Say that a stage was done before.

        Args:
            name: the stage.
            result: what it holds, in a few words.
        """
        self._waiting_s[name] = 0.0
        self._line(name, f"{result}  [dim](done before)[/dim]")

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Show a stage while it runs; `advance` from inside shows its share.

        Args:
            name: the stage.

        Yields:
            while it runs.
        """
        self._started = time.monotonic()
        self._running, self._fraction = name, 0.0
        if self._console.is_terminal:
            with self._live(name):
                yield
        else:
            self._line(name, f"…  [dim]({self._left()})[/dim]")
            yield

    def finish(self, name: str, result: str) -> None:
        """Say what a stage made.

        Args:
            name: the stage.
            result: what it holds, in a few words.
        """
        wall_s = time.monotonic() - self._started
        self._spent_s += wall_s
        self._done_s += self._waiting_s[name]
        self._waiting_s[name] = 0.0
        self._running = ""
        self._line(name, f"{result}  [dim]{wall_s:.0f} s[/dim]")

    def advance(self, fraction: float, message: str = "") -> None:
        """Note how far the running stage is.

        Args:
            fraction: 0 to 1.
            message: a few words, such as the current loss.
        """
        self._fraction = fraction
        if self._bar is not None:
            bar, task = self._bar
            bar.update(task, total=1.0, completed=fraction, note=message)

    def left_s(self) -> float:
        """Seconds that the rest of the tour will take."""
        pace = (self._spent_s + self._prior_s) / max(self._done_s + self._prior_s, 1e-9)
        later_s = pace * sum(left for name, left in self._waiting_s.items() if name != self._running)
        return later_s + (self._running_left_s(pace) if self._running else 0.0)

    def _running_left_s(self, pace: float) -> float:
        running_s = time.monotonic() - self._started
        if self._fraction >= SEEN_SHARE:
            return running_s * (1 - self._fraction) / self._fraction
        return max(pace * self._waiting_s[self._running] - running_s, 0.0)

    def _left(self) -> str:
        left_s = self.left_s()
        return f"about {left_s / 60:.0f} min left" if left_s > 90 else f"about {left_s:.0f} s left"

    def _line(self, name: str, text: str) -> None:
        number = self._names.index(name) + 1
        self._console.print(f"[bold]{number:>2}/{len(self._names)}[/bold] {name:<11} {text}", soft_wrap=True)

    @contextmanager
    def _live(self, name: str) -> Iterator[None]:
        columns = (
            SpinnerColumn(),
            TextColumn(f"[bold]{name:<11}[/bold]"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[note]}"),
            _LeftColumn(self),
        )
        with Progress(*columns, console=self._console, transient=True) as progress:
            self._bar = (progress, progress.add_task(name, total=None, note=""))
            try:
                yield
            finally:
                self._bar = None


class _LeftColumn(ProgressColumn):
    def __init__(self, guide: Guide) -> None:
        self._guide = guide
        super().__init__()

    def render(self, task: Task) -> Text:
        return Text(self._guide._left(), style="dim")
