"""`vitrail atlas show | search | page | compare`."""

from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from vitrail.atlas import ConceptLibrary
from vitrail.atlas.view import (
    Comparison,
    Difference,
    PageSettings,
    Shown,
    compare_corpora,
    compare_groups,
    plain_card,
    search_meaning,
    show_concept,
    write_page,
)
from vitrail.atlas.view.examples import Example
from vitrail.atlas.view.showing import Neighbour, Where
from vitrail.cli.output import Count, Json, Overrides, Whole, described, emit, parse_overrides, working
from vitrail.errors import ConfigError

LISTED_GROUPS = 10
"""Groups that a comparison shows as text."""

Grouping = Annotated[Literal["source", "domain"] | None, Parameter(help="compare group by group: source or domain")]


def search(
    library: Path,
    query: str,
    *,
    limit: Count = 10,
    meaning: bool = False,
    cache: Path | None = None,
    json: Json = False,
) -> None:
    """Find concepts by words of their name, description or characteristic words, or by what they mean.

    Example: `vitrail atlas search runs/atlas "trade"`

    Args:
        library: an atlas, annotated corpus or model directory.
        query: words to look for.
        limit: how many at most.
        meaning: compare what the query means with every card (MiniLM) instead of looking for its words.
        cache: folder in which --meaning keeps the vectors of cards for the next search.
        json: print one JSON object.
    """
    if not query.isprintable():
        raise ConfigError("the query holds signs that are no text; write words in UTF-8")
    concepts = ConceptLibrary.load(library)
    if cache is not None and not meaning:
        raise ConfigError("--cache keeps vectors of cards, which only --meaning needs; add --meaning, or leave it out")
    if meaning:
        with working("reading the cards"):
            found: list[tuple[Any, float | None]] = list(search_meaning(concepts, query, limit, cache))
    else:
        found = [(card, None) for card in concepts.search(query, limit)]
    lines = [
        f"#{card.concept_id:<5} {'' if cosine is None else f'{cosine:.2f}  '}{card.name}: {card.description}"
        for card, cosine in found
    ]
    plain = [plain_card(card) | ({} if cosine is None else {"cosine": cosine}) for card, cosine in found]
    emit({"concepts": plain}, json, "\n".join(lines) or f"no concept matches '{query}'")


def show(library: Path, name: str, *, neighbours: Count = 8, examples: Whole = 3, json: Json = False) -> None:
    """Show one concept: card and neighbours; of an annotated corpus also company, sources and example chunks.

    Example: `vitrail atlas show runs/annotated "exports"`

    Args:
        library: an atlas, annotated corpus or model directory.
        name: name of the concept, or `#ID`.
        neighbours: neighbours, sources and domains listed at most.
        examples: example chunks at most.
        json: print one JSON object.
    """
    shown = show_concept(library, name, neighbours, max(examples, 0))
    emit(shown.plain(), json, "\n".join(_shown_lines(shown)))


def page(annotated: Path, *overrides: Overrides, out: Path, json: Json = False) -> None:
    """Write a static page: concept map, tree, cards, documents, sources; it opens from the disk.

    Example: `vitrail atlas page runs/annotated --out runs/page --title "My corpus"`

    The settings are flags too: `--title`, `--layout` (auto, umap, pca), `--examples`, `--documents`, `--seed`. The page
    contains text of the corpus; `--examples 0 --documents 0` leaves it out.

    Args:
        annotated: an annotated corpus directory.
        overrides: settings of the page.
        out: directory to make; open its `index.html`.
        json: print one JSON object.
    """
    settings = PageSettings.load(overrides=parse_overrides(overrides))
    with working("writing the page"):
        manifest = write_page(annotated, out, settings)
    text = described(out, manifest.counts) + f"\nopen {out / 'index.html'}"
    emit({"id": manifest.id, "counts": manifest.counts, "page": str(out / "index.html")}, json, text)


def compare(
    first: Path, second: Path | None = None, *, by: Grouping = None, limit: Count = 20, json: Json = False
) -> None:
    """Compare how frequent concepts are: sources or domains of one corpus, or two corpora.

    Example: `vitrail atlas compare runs/annotated --by domain`

    Args:
        first: an annotated corpus directory.
        second: another one; without it, each group of the first is compared with all its other chunks.
        by: compare group by group; with two corpora, within each group that both have.
        limit: concepts listed (of each group) at most; JSON has all.
        json: print one JSON object.
    """
    if second is None and by is None:
        raise ConfigError("nothing to compare with: name a second annotated corpus, or give --by source or --by domain")
    with working("counting labels"):
        if second is None:
            found = compare_groups(first, by or "source")
        else:
            found = compare_corpora(first, second, by or "corpus")
    plain = {
        "measure": "log odds ratio of a chunk carrying the concept, first against second; 95 % interval over documents",
        "differences": [_plain(row) for row in found.differences],
        "only_first": list(found.only_first),
        "only_second": list(found.only_second),
        "groups_left_out": list(found.left_out),
        "num_smaller_groups": found.num_smaller,
    }
    others = "all others" if second is None else str(second)
    emit(plain, json, "\n".join(_comparison_lines(found, str(first), others, by, limit)))


def _shown_lines(shown: Shown) -> list[str]:
    card = shown.card
    return [
        f"{card.name}  (#{card.concept_id}, {card.head}, {card.kind})",
        card.description,
        *([f"place:  {' › '.join(card.path)}"] if card.path else []),
        "words:  " + ", ".join(card.words),
        f"chunks: {card.num_chunks:,} of the sample it was built from",
        *_listed("like it (cosine)", [_near_line(one) for one in shown.near]),
        *_listed("on the same chunks (chunks with both, × chance)", [_near_line(one) for one in shown.together]),
        *_listed("sources, most chunks first (share of the source)", [_where_line(one) for one in shown.sources]),
        *_listed("domains, most chunks first (share of the domain)", [_where_line(one) for one in shown.domains]),
        *(line for example in shown.examples for line in _example_lines(example)),
    ]


def _listed(title: str, lines: list[str]) -> list[str]:
    return ["", title, *lines] if lines else []


def _near_line(one: Neighbour) -> str:
    number = f"{one.cosine:6.2f}" if one.cosine is not None else f"{one.num_chunks:>8,} ×{one.lift:<7}"
    return f"  {number}  #{one.concept_id:<5} {one.name}"


def _where_line(one: Where) -> str:
    return (
        f"  {one.carrying / max(one.chunks, 1):7.2%}  {one.name or 'not named'}  ({one.carrying:,} of {one.chunks:,})"
    )


def _example_lines(example: Example) -> list[str]:
    origin = " · ".join(part for part in (example.title, example.source, example.license) if part)
    text = " ".join(marked(example.text, example.spans).split())
    return ["", f"example {example.chunk_id}  score {example.score:g}  ({origin})", f"  {text}"]


def marked(text: str, spans: tuple[tuple[int, int], ...]) -> str:
    """Text with its spans between «…».

    Args:
        text: any text.
        spans: characters `[start, stop)`; those inside an earlier one are left out.

    Returns:
        the marked text.
    """
    pieces, pos = [], 0
    for start, stop in sorted(spans, key=lambda span: (span[0], -span[1])):
        if start >= pos:
            pieces += [text[pos:start], "«", text[start:stop], "»"]
            pos = stop
    return "".join([*pieces, text[pos:]])


def _plain(row: Difference) -> dict[str, Any]:
    return asdict(row) | {"first_share": row.first_share, "second_share": row.second_share}


def _comparison_lines(
    found: Comparison, first: str, second: str, by: Literal["source", "domain"] | None, limit: int
) -> list[str]:
    lines = [
        f"log odds ratio of a chunk carrying the concept: {first} against {second}; "
        "95 % interval over documents; surest first"
    ]
    nameless = "all chunks" if by is None else "not named"
    groups: dict[str, list[Difference]] = {}
    for row in found.differences:
        groups.setdefault(row.group, []).append(row)
    for group, rows in islice(groups.items(), LISTED_GROUPS):
        totals = f"({rows[0].first_total:,} against {rows[0].second_total:,} chunks)"
        lines += ["", f"{group or nameless}  {totals}"]
        for title, side in (
            ("more frequent", [r for r in rows if r.low > 0]),
            ("less frequent", [r for r in rows if r.high < 0]),
        ):
            lines += [f" concepts that are {title}: {len(side):,}", *(_difference_line(row) for row in side[:limit])]
    for title, names in (("only in the first", found.only_first), ("only in the second", found.only_second)):
        if names:
            lines += ["", f"{len(names):,} concepts {title}: {', '.join(names[:limit])}"]
    if found.left_out:
        left_out = ", ".join(name or nameless for name in found.left_out[:limit])
        lines += ["", f"{len(found.left_out):,} groups in one corpus only: {left_out}"]
    if len(groups) > LISTED_GROUPS:
        lines += ["", f"{len(groups) - LISTED_GROUPS:,} more groups, with fewer chunks: --json lists them"]
    if found.num_smaller:
        lines += ["", f"{found.num_smaller:,} groups with fewer chunks are not compared"]
    return lines


def _difference_line(row: Difference) -> str:
    return (
        f"  {row.log_odds:+6.2f} [{row.low:+.2f}, {row.high:+.2f}]  "
        f"{row.first_share:7.2%} against {row.second_share:7.2%}  {row.name}"
    )
