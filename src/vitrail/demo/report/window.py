"""The stained-glass window at the top of the page: real contributions as panes.

The rose adds up the whole answer: each petal is a concept, its angle the share of the absolute
contributions; the small inner ring shows known, discovered and residual. Each lancet below is one word,
its panes the pieces of that word's score, their heights the shares. The residual is clear leaded glass.
Shapes vary by a checksum of the concept's key, never by chance.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

from markupsafe import Markup

from vitrail.demo.report.figures import number, part
from vitrail.demo.report.palette import concept_key, strength_field

NUM_LANCETS, NUM_PANES, NUM_PETALS = 7, 5, 16
WIDTH, HEIGHT = 640, 810
LEFT, RIGHT, SPRING, SILL, RADIUS = 40.0, 600.0, 430.0, 795.0, 403.0
ROSE_X, ROSE_Y, ROSE_R = 320.0, 232.0, 152.0
MIN_SHARE = 0.035
ROUNDING = 1e-4


@dataclass(frozen=True)
class Pane:
    """One piece of glass: what it stands for, its share of the whole and its signed contribution."""

    key: str
    name: str
    style: str
    share: float
    value: float


@dataclass(frozen=True)
class Lancet:
    """One word of the answer and its panes, largest first, the residual last."""

    word: str
    panes: tuple[Pane, ...]


def rose(explanation: Mapping[str, Any], hues: Mapping[str, int]) -> list[Pane]:
    """Petals of the whole answer.

    Args:
        explanation: the explanation document.
        hues: concept key → colour number.

    Returns:
        the largest concepts, the other known and discovered ones, and the residual; shares sum to 1.
    """
    pieces: dict[str, Pane] = {}
    for token in part(explanation, "concepts").get("tokens") or []:
        for pane in _pieces(token, hues):
            before = pieces.get(pane.key)
            size = abs(pane.value) + (before.share if before else 0.0)
            value = pane.value + (before.value if before else 0.0)
            pieces[pane.key] = Pane(pane.key, pane.name, pane.style, size, value)
    return _shares(_fold(list(pieces.values()), NUM_PETALS))


def lancets(explanation: Mapping[str, Any], hues: Mapping[str, int]) -> list[Lancet]:
    """The first whole words of the answer, each with its panes.

    Args:
        explanation: the explanation document.
        hues: concept key → colour number.

    Returns:
        up to NUM_LANCETS words; shares of each sum to 1.
    """
    concepts = {item.get("pos"): item for item in part(explanation, "concepts").get("tokens") or []}
    found = []
    for token in _whole_words(explanation.get("tokens") or []):
        pieces = _pieces(concepts.get(token.get("pos")) or {}, hues)
        if pieces:
            found.append(Lancet(str(token["text"]).strip(), tuple(_shares(_fold(pieces, NUM_PANES)))))
    return found[:NUM_LANCETS]


def window_svg(explanation: Mapping[str, Any], hues: Mapping[str, int]) -> Markup:
    """The window as inline SVG; colours come from the classes of the page's stylesheet.

    Args:
        explanation: the explanation document.
        hues: concept key → colour number.

    Returns:
        an `<svg>` element with a title and a description for those who do not see it.
    """
    petals, words = rose(explanation, hues), lancets(explanation, hues)
    glass = Markup("").join([_rose_svg(petals), _lancets_svg(words)])
    captions = _captions(words)
    largest = ", ".join(f"{pane.name} {pane.share:.0%}" for pane in petals[:5])
    return _FRAME.format(
        width=WIDTH,
        height=HEIGHT,
        described=f"Largest pieces of the answer: {largest}." if petals else "Nothing was measured.",
        outline=_outline(0.0),
        inner=_outline(14.0),
        glass=glass,
        captions=captions,
    )


_FRAME = Markup(
    '<svg class="window" viewBox="0 34 {width} {height}" role="img" aria-labelledby="window-t window-d">'
    '<title id="window-t">A window made of the concepts of this answer</title>'
    '<desc id="window-d">{described}</desc>'
    '<defs><pattern id="lattice" width="18" height="26" patternUnits="userSpaceOnUse">'
    '<rect width="18" height="26" class="clear"/><path d="M0 13 9 0l9 13-9 13z" class="came"/></pattern>'
    '<pattern id="hatch" width="7" height="7" patternUnits="userSpaceOnUse" patternTransform="rotate(38)">'
    '<path d="M0 0v7" class="hatching"/></pattern>'
    '<radialGradient id="sun" cx=".5" cy=".42" r=".75">'
    '<stop offset="0" stop-color="#fff" stop-opacity=".42"/>'
    '<stop offset=".55" stop-color="#fff" stop-opacity=".05"/>'
    '<stop offset="1" stop-color="#000" stop-opacity=".38"/>'
    '</radialGradient><filter id="glow" x="-20%" y="-20%" width="140%" height="140%">'
    '<feGaussianBlur stdDeviation="22"/></filter>'
    '<filter id="grain" x="0" y="0" width="100%" height="100%"><feTurbulence type="fractalNoise" '
    'baseFrequency=".035 .09" numOctaves="2" seed="4"/>'
    '<feColorMatrix values="0 0 0 0 1 0 0 0 0 1 0 0 0 0 1 1.4 0 0 0 -.55"/>'
    '</filter><clipPath id="opening"><path d="{inner}"/></clipPath></defs>'
    '<path class="stone" d="{outline}"/><path class="reveal" d="{inner}"/>'
    '<use href="#glass" class="glow" filter="url(#glow)"/><g id="glass">{glass}</g>'
    '<g clip-path="url(#opening)" class="light"><rect width="640" height="850" fill="url(#sun)"/>'
    '<rect width="640" height="850" filter="url(#grain)" class="grain"/></g>'
    '<g class="captions">{captions}</g></svg>'
)


def _pieces(item: Mapping[str, Any], hues: Mapping[str, int]) -> list[Pane]:
    panes = []
    field = strength_field(item)
    suffix = "_centred" if field == "centred" else ""
    left = {head: number(item.get(head + suffix)) or 0.0 for head in ("known", "discovered")}
    for entry in item.get("ranked") or []:
        key, value = concept_key(entry), number(entry.get(field))
        if value:
            left[str(entry.get("head"))] -= value
            style = f"g{hues.get(key, 0)} {entry.get('head')}"
            panes.append(Pane(key, str(entry.get("name", "")), style, abs(value), value))
    for head, value in left.items():
        if abs(value) > ROUNDING:
            panes.append(Pane(f"rest-{head}", f"other {head} concepts", f"rest {head}", abs(value), value))
    residual = number(item.get("residual" + suffix))
    if residual:
        panes.append(Pane("residual", "residual", "residual", abs(residual), residual))
    return panes


def _fold(panes: Sequence[Pane], count: int) -> list[Pane]:
    ranked = sorted((pane for pane in panes if _is_concept(pane)), key=lambda pane: (-pane.share, pane.key))
    kept, rest = ranked[:count], {pane.key: pane for pane in panes if not _is_concept(pane)}
    for pane in ranked[count:]:
        head = pane.key.partition("-")[0]
        key = f"rest-{head}"
        before = rest.get(key, Pane(key, f"other {head} concepts", f"rest {head}", 0.0, 0.0))
        rest[key] = Pane(key, before.name, before.style, before.share + pane.share, before.value + pane.value)
    order = ("rest-known", "rest-discovered", "residual")
    return kept + [rest[key] for key in order if key in rest]


def _is_concept(pane: Pane) -> bool:
    return not pane.key.startswith(("rest-", "residual"))


def _shares(panes: Sequence[Pane]) -> list[Pane]:
    total = sum(pane.share for pane in panes) or 1.0
    return [Pane(pane.key, pane.name, pane.style, pane.share / total, pane.value) for pane in panes]


def _whole_words(tokens: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    texts = [str(token.get("text", "")) for token in tokens]
    followers = [*texts, " "][1:]
    whole = [
        token
        for token, text, after in zip(tokens, texts, followers, strict=True)
        if text[:1].isspace() and text.strip().isalpha() and not after[:1].isalpha()
    ]
    telling = [token for token in whole if len(str(token["text"]).strip()) > 3]
    for words in (telling, whole):
        if len(words) >= 3:
            return words
    return [token for token, text in zip(tokens, texts, strict=True) if text.strip()]


def _title(pane: Pane) -> str:
    return f"{pane.name}: {pane.value:+.2f} ({pane.share:.0%})"


def _rose_svg(petals: Sequence[Pane]) -> Markup:
    sizes = [max(pane.share, MIN_SHARE) for pane in petals]
    scale, angle = 2 * math.pi / (sum(sizes) or 1.0), -math.pi / 2
    drawn = []
    for pane, size in zip(petals, sizes, strict=True):
        stop = angle + size * scale
        drawn.append(_glass(pane, _petal(angle, stop, 60.0, ROSE_R)))
        angle = stop
    heads = _heads(petals)
    angle = -math.pi / 2
    for pane in heads:
        stop = angle + 2 * math.pi * pane.share
        drawn.append(_glass(pane, _sector(angle, stop, 27.0, 52.0)))
        angle = stop
    ring = Markup('<circle class="tracery" cx="{x}" cy="{y}" r="{r}"/>')
    rings = [ring.format(x=ROSE_X, y=ROSE_Y, r=radius) for radius in (ROSE_R + 9, 56, 24)]
    boss = Markup('<circle class="boss" cx="{x}" cy="{y}" r="17"/>').format(x=ROSE_X, y=ROSE_Y)
    return Markup("").join([*drawn, *rings, boss])


def _heads(petals: Sequence[Pane]) -> list[Pane]:
    found = []
    for head in ("known", "discovered", "residual"):
        panes = [pane for pane in petals if head in pane.style]
        if panes:
            style = head if head == "residual" else f"head {head}"
            share, value = sum(pane.share for pane in panes), sum(pane.value for pane in panes)
            found.append(Pane(head, f"all {head}", style, share, value))
    return found


def _polar(angle: float, radius: float) -> str:
    return f"{ROSE_X + radius * math.cos(angle):.1f} {ROSE_Y + radius * math.sin(angle):.1f}"


def _petal(start: float, stop: float, inner: float, outer: float) -> str:
    shoulder = outer * 0.86
    middle, half = (start + stop) / 2, (stop - start) / 2
    if half > 0.6:
        return _sector(start, stop, inner, outer)
    return (
        f"M{_polar(start, inner)}L{_polar(start, shoulder)}"
        f"Q{_polar(start + half * 0.25, outer)} {_polar(middle, outer)}"
        f"Q{_polar(stop - half * 0.25, outer)} {_polar(stop, shoulder)}L{_polar(stop, inner)}"
        f"A{inner} {inner} 0 0 0 {_polar(start, inner)}Z"
    )


def _sector(start: float, stop: float, inner: float, outer: float) -> str:
    stop = min(stop, start + 2 * math.pi - 1e-3)
    large = int(stop - start > math.pi)
    return (
        f"M{_polar(start, inner)}L{_polar(start, outer)}A{outer} {outer} 0 {large} 1 {_polar(stop, outer)}"
        f"L{_polar(stop, inner)}A{inner} {inner} 0 {large} 0 {_polar(start, inner)}Z"
    )


def _glass(pane: Pane, shape: str) -> Markup:
    hatch = Markup('<path class="pane texture" d="{}"/>').format(shape) if "discovered" in pane.style else ""
    return Markup('<g><title>{}</title><path class="pane {}" d="{}"/>{}</g>').format(
        _title(pane), pane.style, shape, hatch
    )


def _lancets_svg(words: Sequence[Lancet]) -> Markup:
    return Markup("").join(_lancet_svg(lancet, place, len(words)) for place, lancet in enumerate(words))


def _place(place: int, count: int) -> tuple[float, float]:
    gap, start, stop = 11.0, LEFT + 26, RIGHT - 26
    width = min((stop - start - gap * (count - 1)) / count, 92.0)
    start += (stop - start - width * count - gap * (count - 1)) / 2
    return start + place * (width + gap), width


def _lancet_svg(lancet: Lancet, place: int, count: int) -> Markup:
    x, width = _place(place, count)
    middle, top, base = x + width / 2, 408.0, SILL - 22
    shoulder = top + width * 0.95
    shape = (
        f"M{x:.1f} {base}V{shoulder:.1f}A{width:.1f} {width:.1f} 0 0 1 {middle:.1f} {top}"
        f"A{width:.1f} {width:.1f} 0 0 1 {x + width:.1f} {shoulder:.1f}V{base}Z"
    )
    sizes = [max(pane.share, MIN_SHARE) for pane in lancet.panes]
    scale, y, drawn, slant_above = (base - top) / sum(sizes), top, [], 0.0
    for pane, size in zip(lancet.panes, sizes, strict=True):
        is_last = pane is lancet.panes[-1]
        below = y + size * scale
        slant = 0.0 if is_last else _jitter(f"{pane.key}{place}") * min(9.0, size * scale / 3)
        edge = (
            f"M{x:.1f} {y - slant_above:.1f}L{x + width:.1f} {y + slant_above:.1f}"
            f"V{below + slant:.1f}L{x:.1f} {below - slant:.1f}Z"
        )
        drawn += [_glass(pane, edge), _facet(pane, place, x, width, y, below)]
        y, slant_above = below, slant
    return Markup(
        '<clipPath id="l{p}"><path d="{s}"/></clipPath><g clip-path="url(#l{p})">{g}</g><path class="lead" d="{s}"/>'
    ).format(p=place, s=shape, g=Markup("").join(drawn))


def _facet(pane: Pane, place: int, x: float, width: float, top: float, below: float) -> Markup:
    """A second cut of the same glass: one lead line across tall panes, one half a little lighter."""
    if below - top < 34 or pane.key == "residual":
        return Markup("")
    tilt = _jitter(f"{place}{pane.key}")
    middle = (top + below) / 2
    left, right = middle + tilt * (below - top) * 0.35, middle - tilt * (below - top) * 0.35
    return Markup(
        '<path class="facet" d="M{x} {l}L{r} {m}V{b}H{x}Z"/><path class="thin" d="M{x} {l}L{r} {m}"/>'
    ).format(x=f"{x:.1f}", r=f"{x + width:.1f}", l=f"{left:.1f}", m=f"{right:.1f}", b=f"{below:.1f}")


def _jitter(key: str) -> float:
    return crc32(key.encode("utf-8", "replace")) / 2**31 - 1


def _captions(words: Sequence[Lancet]) -> Markup:
    shown = [lancet.word if len(lancet.word) <= 11 else lancet.word[:10] + "…" for lancet in words]
    _, width = _place(0, max(len(words), 1))
    size = min(19.0, (width + 11) / (0.48 * max(map(len, shown), default=1)))
    text = Markup('<text x="{:.1f}" y="{}" font-size="{:.1f}">{}</text>')
    middles = [sum(_place(place, len(words))) - width / 2 for place in range(len(words))]
    return Markup("").join(text.format(x, SILL + 32, size, word) for x, word in zip(middles, shown, strict=True))


def _outline(inset: float) -> str:
    """A pointed arch: two arcs of RADIUS above the springing line, straight jambs below."""
    left, right, radius, base = LEFT + inset, RIGHT - inset, RADIUS - inset, SILL - inset * 0.7
    apex = SPRING - math.sqrt(radius**2 - (RADIUS - (RIGHT - LEFT) / 2) ** 2)
    middle = (LEFT + RIGHT) / 2
    return (
        f"M{left} {base}V{SPRING}A{radius} {radius} 0 0 1 {middle} {apex:.1f}"
        f"A{radius} {radius} 0 0 1 {right} {SPRING}V{base}Z"
    )
