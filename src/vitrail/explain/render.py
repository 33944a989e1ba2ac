"""An explanation for a reader at a terminal, in colour or plain.

Nothing is said by colour alone: ranked prompt tokens carry their rank, bars have a sign and two fillings,
shared words stand between » and «. Without colour, or in ASCII, the same text can be read.
"""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from vitrail.explain.document import (
    ConceptsOfChunk,
    Document,
    InputsOfChunk,
    PromptToken,
    SourceHit,
    SourcesOfChunk,
)

BAR_WIDTH = 18
NUM_MARKED = 9
PASSAGE_CHARS = 280
MIN_OVERLAP_TOKENS = 3
"""Shorter runs are shared by any two texts and are not marked."""


def render(document: Document, console: Console) -> None:
    """Print an explanation.

    Args:
        document: the explanation.
        console: where to print; its width, colours and encoding are respected.
    """
    console.print(Text.assemble(("Prompt  ", "bold"), document.prompt))
    console.print(Text.assemble(("Answer  ", "bold"), document.text))
    if document.steer:
        console.print(Text.assemble(("Steered ", "bold"), document.steer))
    sources = {part.chunk: part for part in document.sources.chunks}
    parts = zip(document.chunks, document.inputs.chunks, document.concepts.chunks, strict=True)
    for span, inputs, concepts in parts:
        console.print()
        console.rule(f"chunk {span.chunk}, tokens {span.start} to {span.stop - 1}", align="left", characters="-")
        console.print(Text(span.text.strip(), style="italic"))
        _print_inputs(console, document.prompt_tokens, inputs)
        _print_concepts(console, concepts)
        if span.chunk in sources:
            _print_sources(console, sources[span.chunk], document.sources.note)
    console.print()
    _print_certificate(console, document)


def _print_inputs(console: Console, tokens: Sequence[PromptToken], inputs: InputsOfChunk) -> None:
    _heading(console, "Inputs", "what the chunk rests on, logits added over its tokens (Integrated Gradients)")
    largest = max((abs(score) for score in inputs.scores), default=0.0)
    ranks = {hit.pos: rank for rank, hit in enumerate(inputs.ranked[:NUM_MARKED], start=1) if hit.where == "prompt"}
    line = Text()
    for token, score in zip(tokens, inputs.scores, strict=True):
        line.append(token.text.replace("\n", " "), style=_shade(score, largest))
        if token.pos in ranks:
            line.append(f"[{ranks[token.pos]}]", style="bold")
    console.print(line)
    table = _table()
    top = max((abs(hit.score) for hit in inputs.ranked), default=0.0)
    for rank, hit in enumerate(inputs.ranked[:NUM_MARKED], start=1):
        word = Text(f"[{rank}] {hit.text.strip() or repr(hit.text)}")
        table.add_row(word, _bar(console, hit.score, top), f"{hit.score:+.2f}", f"{hit.where} {hit.pos}")
    console.print(table)
    shares = f"prompt {inputs.prompt_share:.0%}, generated text {inputs.generated_share:.0%}"
    if inputs.injection:
        shares += f", injected steering {inputs.injection_share:.0%}"
    console.print(Text(f"{shares}; completeness gap {inputs.completeness_gap:.1%}", style="dim"))


def _print_concepts(console: Console, concepts: ConceptsOfChunk) -> None:
    _heading(console, "Concepts", "signed contributions, logits added over its tokens; sorted by what is specific")
    table = _table()
    table.add_row("", Text("specific to these tokens", style="dim"), "", Text("raw", style="dim"), "")
    top = max((abs(concept.centred) for concept in concepts.ranked), default=0.0)
    for concept in concepts.ranked:
        table.add_row(
            Text(concept.name),
            _bar(console, concept.centred, top),
            f"{concept.centred:+.2f}",
            f"{concept.contribution:+.2f}",
            concept.head,
        )
    console.print(table)
    total = concepts.known + concepts.discovered + concepts.residual
    sentence = (
        f"logits {total:+.2f} = known {concepts.known:+.2f}, discovered {concepts.discovered:+.2f}, "
        f"residual {concepts.residual:+.2f} (not listed: known {concepts.unlisted_known:+.2f}, "
        f"discovered {concepts.unlisted_discovered:+.2f})"
    )
    console.print(Text(sentence, style="dim"))


def _print_sources(console: Console, sources: SourcesOfChunk, note: str) -> None:
    _heading(console, "Training text", note)
    for rank, hit in enumerate(sources.hits, start=1):
        head = f"{rank}. {hit.title or hit.source or hit.document_id}"
        facts = f"  similarity {hit.similarity:.2f}, {hit.overlap.num_tokens} tokens in common; {hit.source}"
        console.print(Text.assemble((head, "bold"), (facts, "dim")))
        console.print(_passage(console, hit))


def _print_certificate(console: Console, document: Document) -> None:
    certificate = document.certificate
    verdict = ("passed", "bold green") if certificate.passed else ("FAILED: do not trust the parts", "bold red")
    facts = (
        f"  parts recomputed in fp64 for {certificate.num_tokens} tokens: largest error "
        f"{certificate.max_abs_error:.1e}; {certificate.num_deletions} deletions: "
        f"{certificate.deletion_max_abs_error:.1e}; allowed {certificate.tolerance:.1e} ({certificate.dtype})"
    )
    console.print(Text.assemble(("Certificate ", "bold"), verdict, (facts, "dim")))


def _passage(console: Console, hit: SourceHit) -> Text:
    """The passage around the words it shares with the answer, those marked; else its beginning."""
    opened, closed = (">>", "<<") if console.options.ascii_only else ("»", "«")
    text, shared = " ".join(hit.text.split()), " ".join(hit.overlap.text.split())
    at = text.find(shared) if shared and hit.overlap.num_tokens >= MIN_OVERLAP_TOKENS else -1
    if at < 0:
        return Text("   " + text[:PASSAGE_CHARS])
    start = max(0, at - (PASSAGE_CHARS - len(shared)) // 2)
    after = at + len(shared)
    return Text.assemble(
        "   ",
        text[start:at],
        (f"{opened}{shared}{closed}", "bold"),
        text[after : max(after, start + PASSAGE_CHARS)],
    )


def _heading(console: Console, title: str, subtitle: str) -> None:
    console.print()
    console.print(Text.assemble((title, "bold underline"), (f"  {subtitle}", "dim")))


def _table() -> Table:
    table = Table(box=None, show_header=False, padding=(0, 1))
    for justify in ("left", "left", "right", "right", "left"):
        table.add_column(justify=justify)
    return table


def _bar(console: Console, value: float, largest: float) -> Text:
    """A bar with its sign; negative ones have another filling, not only another colour."""
    length = max(1, round(BAR_WIDTH * abs(value) / largest)) if largest else 0
    filling = ("#", "-") if console.options.ascii_only else ("█", "░")
    is_negative = value < 0
    return Text(("-" if is_negative else "+") + filling[is_negative] * length, style="red" if is_negative else "blue")


def _shade(score: float, largest: float) -> str:
    """Background by |score|: three steps of blue (for) or red (against)."""
    level = int(3 * abs(score) / largest + 0.5) if largest else 0
    colours = ("#4a1d1d", "#7a2323", "#a83232") if score < 0 else ("#1d2f4a", "#23477a", "#3263a8")
    return f"white on {colours[level - 1]}" if level else ""
