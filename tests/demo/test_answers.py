"""Prompts of the demo's answers: drawn by seed, never none."""

from vitrail.atlas import Chunk
from vitrail.atlas.library import Label
from vitrail.corpus import Split
from vitrail.demo.answers import prompt_chunks


def chunk(row: int, num_words: int, *concepts: int, split: Split = "heldout") -> Chunk:
    labels = tuple(Label(concept, 1.0 - n / 10, ()) for n, concept in enumerate(concepts))
    text = "word " * num_words
    return Chunk(row, f"d:{row}", "d", 0, len(text), text, labels, "source", "", "", "domain", split)


def test_one_chunk_for_each_concept_in_a_seeded_order() -> None:
    chunks = [chunk(row, 30, row % 5, 7) for row in range(40)] + [chunk(50, 30, 9, split="train"), chunk(51, 3, 8)]
    drawn = prompt_chunks(chunks, 0)
    assert {found.labels[0].concept_id for found in drawn} == set(range(5))
    assert drawn == prompt_chunks(chunks, 0)
    assert any(drawn != prompt_chunks(chunks, seed) for seed in range(1, 5))


def test_text_without_a_concept_still_gets_an_answer() -> None:
    """Held-out text that no concept fits (another alphabet) ended a finished demo with an IndexError."""
    chunks = [chunk(0, 40, 1, split="train"), chunk(1, 5), chunk(2, 30), chunk(3, 30)]
    assert [found.row for found in prompt_chunks(chunks, 0)] == [2]
