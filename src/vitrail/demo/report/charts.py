"""Small charts as our own SVG: horizontal tracks with intervals, and lines on two axes.

A `Track` is one row of a horizontal chart: percentages along a shared scale, so that the page can lay
text beside it at any width. Line charts carry marker shapes and dashes besides colour.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from vitrail.demo.report.figures import Figure

WIDTH, HEIGHT = 460, 290
LEFT, RIGHT, TOP, BOTTOM = 52.0, 446.0, 14.0, 244.0


@dataclass(frozen=True)
class Track:
    """One row: a figure, and its value, bounds and zero in percent of the shared scale (None: no bar)."""

    label: str
    figure: Figure
    meaning: str = ""
    is_main: bool = False
    zero: float = 0.0
    at: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Point:
    """One point of a line chart with the interval of its height."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    label: str = ""


@dataclass(frozen=True)
class Series:
    """A named line; `style` picks colour, dash and marker together (0, 1, 2)."""

    name: str
    points: tuple[Point, ...]
    style: int = 0


def tracks(rows: Sequence[tuple[str, Figure, str]], main: str = "", start: float = 0.0) -> list[Track]:
    """Rows of a horizontal chart on one scale.

    Args:
        rows: label, figure, plain-English meaning.
        main: label of the row to stress.
        start: where the scale begins unless a bound lies below it.

    Returns:
        the rows with their places in percent.
    """
    known = [bound for _, figure, _ in rows for bound in (figure.value, figure.low, figure.high) if bound is not None]
    lowest, highest = min([start, *known]), max([start + 1e-9, *known])
    scale = 94 / (highest - lowest)

    def place(value: float | None) -> float | None:
        return None if value is None else round(3 + (value - lowest) * scale, 2)

    return [
        Track(
            label,
            figure,
            meaning,
            label == main,
            place(max(start, lowest)) or 0.0,
            place(figure.value),
            place(figure.low),
            place(figure.high),
        )
        for label, figure, meaning in rows
    ]


def line_chart(
    series: Sequence[Series],
    title: str,
    x_label: str,
    y_label: str,
    *,
    is_log_x: bool = False,
    y_start: float | None = None,
    guides: Sequence[float] = (),
) -> Markup:
    """A line chart as inline SVG.

    Args:
        series: the lines; those without points are left out.
        title: what the chart says, for those who do not see it.
        x_label: name and unit of the horizontal axis.
        y_label: name and unit of the vertical axis.
        is_log_x: logarithmic horizontal axis.
        y_start: lowest value that the vertical axis must include.
        guides: horizontal places of dashed vertical lines, such as an aim's limit.

    Returns:
        the `<svg>` element, or an empty string where there is nothing to draw.
    """
    drawn = [line for line in series if line.points]
    if not drawn:
        return Markup("")
    xs = [point.x for line in drawn for point in line.points] + list(guides)
    ys = [bound for line in drawn for p in line.points for bound in (p.y, p.low, p.high) if bound is not None]
    ys += [] if y_start is None else [y_start]
    to_x, x_ticks = _axis(min(xs), max(xs), LEFT, RIGHT, is_log_x)
    to_y, y_ticks = _axis(min(ys), max(ys), BOTTOM, TOP, False)
    marks = [
        *(
            _Y_TICK.format(x0=LEFT, x1=RIGHT, y=to_y(v), dy=to_y(v) + 4, tx=LEFT - 8, text=tick_text(v))
            for v in y_ticks
        ),
        *(_X_TICK.format(x=to_x(v), y=BOTTOM + 20, text=tick_text(v)) for v in x_ticks),
        *(_GUIDE.format(x=to_x(v), y0=TOP, y1=BOTTOM) for v in guides),
        *(_line(line, to_x, to_y) for line in drawn),
    ]
    return _CHART.format(
        w=WIDTH,
        h=HEIGHT,
        title=title,
        marks=Markup("").join(marks),
        x=x_label,
        y=y_label,
        xm=(LEFT + RIGHT) / 2,
        yb=HEIGHT - 8,
        ym=(TOP + BOTTOM) / 2,
    )


_CHART = Markup(
    '<svg class="chart" viewBox="0 0 {w} {h}" role="img" aria-label="{title}">{marks}'
    '<text class="axis" x="{xm}" y="{yb}">{x}</text>'
    '<text class="axis" transform="translate(13 {ym}) rotate(-90)">{y}</text></svg>'
)
_Y_TICK = Markup(
    '<path class="grid" d="M{x0} {y:.1f}H{x1}"/><text class="tick end" x="{tx}" y="{dy:.1f}">{text}</text>'
)
_X_TICK = Markup('<text class="tick" x="{x:.1f}" y="{y}">{text}</text>')
_GUIDE = Markup('<path class="guide" d="M{x:.1f} {y0}V{y1}"/>')
_MARKERS = ("M-4.5 0a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0-9 0z", "M-4-4h8v8h-8z", "M0-5.5 5.5 4.5h-11z")


def _line(line: Series, to_x: "_Scale", to_y: "_Scale") -> Markup:
    places = [(to_x(point.x), to_y(point.y)) for point in line.points]
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    is_dense = len(places) > 40
    marks = (
        []
        if is_dense
        else [
            Markup('<path class="mark" transform="translate({:.1f} {:.1f})" d="{}"><title>{}</title></path>').format(
                x, y, _MARKERS[line.style % 3], point.label
            )
            for point, (x, y) in zip(line.points, places, strict=True)
        ]
    )
    bars = [
        Markup('<path class="bar" d="M{:.1f} {:.1f}V{:.1f}"/>').format(to_x(p.x), to_y(p.low), to_y(p.high))
        for p in line.points
        if p.low is not None and p.high is not None
    ]
    return Markup('<g class="series s{}">{}<path class="line" d="{}"/>{}</g>').format(
        line.style, Markup("").join(bars), path, Markup("").join(marks)
    )


@dataclass(frozen=True)
class _Scale:
    low: float
    high: float
    start: float
    stop: float
    is_log: bool

    def __call__(self, value: float) -> float:
        value = math.log(value) if self.is_log else value
        return self.start + (value - self.low) / (self.high - self.low) * (self.stop - self.start)


def _axis(low: float, high: float, start: float, stop: float, is_log: bool) -> tuple[_Scale, list[float]]:
    if is_log:
        low, high = max(low, 1e-6) * 0.97, max(high, 1e-6) * 1.03
        steps = [base * 10.0**power for power in range(-6, 7) for base in (1, 1.25, 1.5, 2, 3, 5, 7)]
        return _Scale(math.log(low), math.log(high), start, stop, True), [v for v in steps if low <= v <= high]
    ticks = nice_ticks(low, high)
    return _Scale(ticks[0], ticks[-1], start, stop, False), ticks


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers that enclose a range.

    Args:
        low: lower end.
        high: upper end.
        count: about how many steps.

    Returns:
        at least two numbers, the first ≤ low, the last ≥ high.
    """
    span = (high - low) or abs(high) or 1.0
    rough = span / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * base for base in (1, 2, 2.5, 5, 10) if power * base >= rough * 0.999)
    first, last = (
        math.floor(low / step + 1e-9),
        max(math.ceil(high / step - 1e-9), math.floor(low / step + 1e-9) + 1),
    )
    return [place * step for place in range(first, last + 1)]


def tick_text(value: float) -> str:
    """A short label of a round number: 1.2M, 300k, 0.25.

    Args:
        value: the number.

    Returns:
        its label.
    """
    for limit, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            return f"{value / (1e3 if letter == 'k' else limit):.4g}{letter}"
    return f"{value:.4g}".replace("-", "\u2212")
