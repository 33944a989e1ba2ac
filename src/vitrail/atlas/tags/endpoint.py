"""Tags asked of a language model, and one table for them and for the phrases of the text (§4.2.1).

The paper's pipeline tags with a language model, with high recall (S). One request a chunk is our default (C): the
answer then depends on its chunk alone, so the journal serves it again whatever chunks stand around it, and a broken
answer loses one chunk. Several chunks in one request spare the prompt's tokens where the server keeps no prefix cache;
chunks are put together in the order of their sorted texts, and any that come back without tags are asked alone.

Letters: R chunks, n tags.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from pydantic import BaseModel

from vitrail.atlas.concepts.geometry import count_matrix
from vitrail.atlas.llm import Asker, Prompt
from vitrail.atlas.tags.normalise import normalise, singular
from vitrail.atlas.tags.phrases import Tagger, TagTable
from vitrail.atlas.tags.tagging import Tagging
from vitrail.atlas.tags.writing import tag_table
from vitrail.errors import RunFailed

MAX_TAGS_PER_CHUNK = 30
"""A model that runs on gives no more than so many."""
MAX_WORDS, MAX_CHARS = 6, 60
"""Longer ones are sentences."""

_HAS_LETTER = re.compile(r"[^\W\d_]")


class ChunkTags(BaseModel):
    """Answer to a request for one chunk."""

    tags: list[str]


class NumberedTags(BaseModel):
    """Tags of one of several chunks."""

    number: int
    tags: list[str]


class ManyTags(BaseModel):
    """Answer to a request for several chunks."""

    passages: list[NumberedTags]


class EndpointTagger:
    """Gives each chunk the tags that a language model finds."""

    def __init__(self, asker: Asker, prompt: Prompt, chunks_per_request: int = 1):
        """Hold what is asked, and of whom.

        Args:
            asker: whose model and journal are used.
            prompt: asks for the tags of `{text}`.
            chunks_per_request: how many are put together.
        """
        self._asker, self._prompt, self._per_request = asker, prompt, chunks_per_request

    def tag(self, texts: Sequence[str]) -> list[list[str]]:
        """The tags of chunks.

        Args:
            texts: R chunks.

        Returns:
            for each its normalised tags, none twice, singular and plural being one; empty where there is no answer.

        Raises:
            ConfigError: no `openai` package, a wrong key or address.
            RunFailed: the server is gone, too many faults, too high a cost; answers are kept.
        """
        return [list(_distinct(raw)) for raw in self.raw_tags(texts)]

    def raw_tags(self, texts: Sequence[str]) -> list[list[str]]:
        """The tags of chunks as the model wrote them.

        Args:
            texts: R chunks.

        Returns:
            for each its tags.
        """
        unique = sorted(set(texts))
        found = self._asked_together(unique) if self._per_request > 1 else {}
        alone = [text for text in unique if text not in found]
        questions = [self._prompt.filled(text=text) for text in alone]
        answers = self._asker.ask(questions, ChunkTags, "chunks") if alone else []
        for text, answer in zip(alone, answers, strict=True):
            found[text] = answer.tags if answer else []
        return [found[text][:MAX_TAGS_PER_CHUNK] for text in texts]

    def _asked_together(self, texts: Sequence[str]) -> dict[str, list[str]]:
        groups = [texts[i : i + self._per_request] for i in range(0, len(texts), self._per_request)]
        questions = [self._prompt.filled(text=_numbered(group)) for group in groups]
        answers = self._asker.ask(questions, ManyTags, "groups of chunks")
        found: dict[str, list[str]] = {}
        for group, answer in zip(groups, answers, strict=True):
            for passage in answer.passages if answer else []:
                if 1 <= passage.number <= len(group) and passage.tags:
                    found.setdefault(group[passage.number - 1], passage.tags)
        return found


def tag_with_endpoint(
    texts: Sequence[str], tagging: Tagging, tagger: EndpointTagger, *, min_chunks: int, max_tags: int
) -> Tagging:
    """Tags of a language model beside the phrases of the text, in one table.

    Forms that differ in number only become one: a phrase of the text if there is one, else the one that more chunks
    were given. The phrases stay: they make the
    vectors of chunks; concepts are clustered from what was given.

    Args:
        texts: R chunks.
        tagging: the phrases found in them.
        tagger: asks the model.
        min_chunks: chunks that a tag must be given to.
        max_tags: given tags kept at most, the most frequent first.

    Returns:
        the tagging: `table` holds both, `occurrences` where each stands in the texts, `given` what the model gave.

    Raises:
        ConfigError: no `openai` package, a wrong key or address.
        RunFailed: the server is gone, too many faults, or no tag is given to enough chunks; answers are kept.
    """
    raw = tagger.raw_tags(texts)
    rows = [_distinct(tags) for tags in raw]
    form = _usual_forms(rows, frozenset(tagging.table.tags))
    rows_of_forms = [{form[tag] for tag in row} for row in rows]
    spread = Counter(tag for row in rows_of_forms for tag in row)
    kept = [tag for tag in sorted(spread, key=lambda tag: (-spread[tag], tag)) if spread[tag] >= min_chunks][:max_tags]
    if not kept:
        raise RunFailed(
            f"the language model gave {len(spread):,} different tags, none of them to {min_chunks} chunks or more; "
            "take more chunks (--max_chunks), or look at its answers in the journal: prompt or model may be wrong"
        )
    tags = sorted({*tagging.table.tags, *kept})
    number = {tag: i for i, tag in enumerate(tags)}
    finder, given = Tagger(tags), set(kept)
    found = [finder.tag(text) for text in texts]
    return Tagging(
        _with_given(tag_table(texts, tags, found), given, _displays(rows, form)),
        occurrences=count_matrix([[occurrence.tag for occurrence in row] for row in found], len(tags)),
        given=count_matrix([sorted(number[tag] for tag in row & given) for row in rows_of_forms], len(tags)),
    )


def _distinct(raw: Iterable[str]) -> dict[str, str]:
    """Normalised tag → as written, the first of each singular; what is no tag is left out."""
    found: dict[str, str] = {}
    seen: set[str] = set()
    for written in raw:
        tag = normalise(written)
        key = singular(tag)
        if _is_tag(tag) and key not in seen:
            seen.add(key)
            found[tag] = " ".join(written.split())
    return found


def _is_tag(tag: str) -> bool:
    return bool(_HAS_LETTER.search(tag)) and len(tag) <= MAX_CHARS and len(tag.split()) <= MAX_WORDS


def _usual_forms(rows: Sequence[Mapping[str, str]], phrases: frozenset[str]) -> dict[str, str]:
    """Each given tag → the form of it that stands in the texts, or that most chunks were given."""
    spread = Counter(tag for row in rows for tag in row)
    usual: dict[str, str] = {}
    for tag in sorted(phrases | spread.keys(), key=lambda tag: (tag not in phrases, -spread[tag], tag)):
        usual.setdefault(singular(tag), tag)
    return {tag: usual[singular(tag)] for tag in spread}


def _displays(rows: Sequence[Mapping[str, str]], form: Mapping[str, str]) -> dict[str, str]:
    """How each form is most often written."""
    written: dict[str, Counter[str]] = {}
    for row in rows:
        for tag, display in row.items():
            if form[tag] == tag:
                written.setdefault(tag, Counter())[display] += 1
    usual = {tag: min(count, key=lambda display: (-count[display], display)) for tag, count in written.items()}
    return {tag: usual.get(tag, tag) for tag in form.values()}


def _with_given(table: TagTable, given: set[str], displays: Mapping[str, str]) -> TagTable:
    """The table, where a given tag that no sentence shows is written as the model wrote it, and stands for a thing."""
    display = [
        displays[tag] if tag in given and shown == tag else shown
        for tag, shown in zip(table.tags, table.display, strict=True)
    ]
    nouns = [1.0 if tag in given else share for tag, share in zip(table.tags, table.noun_share, strict=True)]
    return replace(table, display=tuple(display), noun_share=tuple(nouns))


def _numbered(texts: Sequence[str]) -> str:
    passages = "\n\n".join(f"[{number}]\n{text}" for number, text in enumerate(texts, 1))
    return (
        f"{passages}\n\nThese are {len(texts)} passages. Give the tags of each under its number: "
        '{"passages": [{"number": 1, "tags": ["first tag"]}, …]}'
    )
