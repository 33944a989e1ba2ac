"""Names, descriptions and kinds of concepts, asked of a language model (§4.2.2).

The model sees what a reader would: member tags, characteristic words, a few passages. Where it gives no usable answer
the embedded name stays, and that is counted. Names are unique: the concept that comes first keeps a name that two were
given, the other gets its embedded name in brackets.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, StringConstraints

from vitrail.atlas.concepts.own import plain_line
from vitrail.atlas.library import Kind
from vitrail.atlas.llm import Asker, Prompt

NUM_TAGS, NUM_WORDS, NUM_EXAMPLES, EXAMPLE_CHARS = 30, 12, 5, 600

_Line = Annotated[str, StringConstraints(strip_whitespace=True, min_length=2)]
_Name = Annotated[_Line, StringConstraints(max_length=60, pattern=r"^[^\n]*$")]


class ConceptAnswer(BaseModel):
    """What the model says of a concept."""

    name: _Name
    description: Annotated[_Line, StringConstraints(max_length=400)]
    kind: Kind = "content"


@dataclass(frozen=True)
class ToName:
    """A concept to be named.

    Attributes:
        name: the embedded name, kept where the model gives none; unique.
        description: the embedded one.
        kind: the one it has.
        tags: member tags, the most central first.
        words: characteristic words, the most characteristic first.
        examples: passages that carry it, the best first.
    """

    name: str
    description: str
    kind: Kind
    tags: tuple[str, ...]
    words: tuple[str, ...]
    examples: tuple[str, ...]


@dataclass(frozen=True)
class Named:
    """A concept with its name.

    Attributes:
        name: unique among the concepts named together, whatever the case.
        description: one line.
        kind: which head it belongs to.
        is_by_llm: whether the model named it; otherwise all is as it was.
    """

    name: str
    description: str
    kind: Kind
    is_by_llm: bool


def name_by_llm(concepts: Sequence[ToName], asker: Asker, prompt: Prompt, others: Sequence[str] = ()) -> list[Named]:
    """Name concepts.

    Args:
        concepts: in the order of the library.
        asker: whose model and journal are used.
        prompt: asks for a name, given `{tags}`, `{words}` and `{examples}`.
        others: names of further concepts of the library, which are not given again.

    Returns:
        the names in the same order.

    Raises:
        ConfigError: no `openai` package, a wrong key or address.
        RunFailed: the server is gone, too many faults, too high a cost; answers are kept.
    """
    answers = asker.ask([_question(concept, prompt) for concept in concepts], ConceptAnswer, "concepts")
    # An embedded name is spoken for until its own concept lets go of it.
    kept = {c.name.casefold() for c, answer in zip(concepts, answers, strict=True) if answer is None}
    taken = kept | {name.casefold() for name in others}
    named = []
    for concept, answer in zip(concepts, answers, strict=True):
        if answer is None:
            named.append(Named(concept.name, concept.description, concept.kind, is_by_llm=False))
            continue
        name = _unique(_plain(answer.name) or concept.name, concept.name, taken)
        taken.add(name.casefold())
        description = plain_line(answer.description) or concept.description
        named.append(Named(name, description, answer.kind, is_by_llm=True))
    return named


def _question(concept: ToName, prompt: Prompt) -> tuple[dict[str, str], dict[str, str]]:
    passages = [" ".join(text[:EXAMPLE_CHARS].split()) for text in concept.examples[:NUM_EXAMPLES]]
    return prompt.filled(
        tags=", ".join(concept.tags[:NUM_TAGS]),
        words=", ".join(concept.words[:NUM_WORDS]),
        examples="\n\n".join(f"- {passage}" for passage in passages),
    )


def _plain(name: str) -> str:
    """A name without the signs that steering reads as more concepts or as an id."""
    return plain_line(name.replace(";", ",")).lstrip("# ")


def _unique(wanted: str, embedded: str, taken: set[str]) -> str:
    for name in (wanted, f"{wanted} ({embedded})"):
        if name.casefold() not in taken:
            return name
    number = 2
    while f"{wanted} ({embedded}) {number}".casefold() in taken:
        number += 1
    return f"{wanted} ({embedded}) {number}"
