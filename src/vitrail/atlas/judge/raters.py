"""Who rates how well a concept fits a passage, from 1 (not at all) to 5 (exactly): a language model, or a rule.

A rating always bears its rater's name: the two scales have the same ends and nothing else in common. The paper rates
with a language model (S); the rule is ours (C), for machines without one. It compares MiniLM's vectors of the passage
and of the card, and calls a fit what few passages without that label reach: per concept, the cosine's place among those
of sampled passages that do not carry it. By construction a tenth of random pairs are rated 2 or more and their mean is
1.175, whatever the encoder makes of the concept; a rating says how rare a fit is, not how good a reader would find it.
"""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float32, Float64
from pydantic import BaseModel, Field

from vitrail.atlas.annotated import Chunk
from vitrail.atlas.concepts.encoder import MiniLM
from vitrail.atlas.library import Card
from vitrail.atlas.llm import Asker, Prompt
from vitrail.errors import CorpusError

RANDOM_SHARES = (0.90, 0.95, 0.98, 0.995)
"""A rating of 2, 3, 4, 5 takes a cosine above that of this share of passages without the label."""
MIN_REFERENCE = 50
"""Passages without a label that its scale needs."""


@runtime_checkable
class Rater(Protocol):
    """Rates pairs of a passage and a concept."""

    @property
    def name(self) -> str:
        """Who rates, in words that go beside every figure."""

    def rate(self, texts: Sequence[str], cards: Sequence[Card]) -> Float64[np.ndarray, " n"]:
        """Ratings of n pairs, 1 to 5; NaN where there is none."""


class RelevanceAnswer(BaseModel):
    """What a language model answers."""

    relevance: int = Field(ge=1, le=5)


class EndpointRater:
    """A language model that is shown the card and the passage."""

    def __init__(self, asker: Asker, prompt: Prompt):
        """Hold what is asked, and of whom.

        Args:
            asker: whose model and journal are used.
            prompt: asks for a rating, given `{name}`, `{description}` and `{text}`.
        """
        self._asker, self._prompt = asker, prompt

    @property
    def name(self) -> str:
        """The model's name."""
        return f"language model {self._asker.model.model}"

    def rate(self, texts: Sequence[str], cards: Sequence[Card]) -> Float64[np.ndarray, " n"]:
        """Ask for n ratings.

        Args:
            texts: a passage each.
            cards: a concept each.

        Returns:
            [n] 1 to 5; NaN where there is no usable answer.

        Raises:
            ConfigError: no `openai` package, a wrong key or address.
            RunFailed: the server is gone, too many faults, too high a cost; answers are kept.
        """
        questions = [
            self._prompt.filled(name=card.name, description=card.description, text=text)
            for text, card in zip(texts, cards, strict=True)
        ]
        answers = self._asker.ask(questions, RelevanceAnswer, "ratings")
        return np.array([answer.relevance if answer else np.nan for answer in answers], np.float64)


class EmbeddedRater:
    """The rule: MiniLM's cosine of passage and card, by its place among passages without the label."""

    name = "embedded judge (MiniLM cosine of passage and card, by its rank among passages without the label)"

    def __init__(self, encoder: MiniLM, reference: Sequence[Chunk]):
        """Encode the passages that the scales are made from.

        Args:
            encoder: of passages and cards.
            reference: passages drawn without regard to their labels.

        Raises:
            CorpusError: fewer than fifty passages.
        """
        if len(reference) < MIN_REFERENCE:
            raise CorpusError(
                f"the embedded judge needs {MIN_REFERENCE} passages to compare with, there are {len(reference)}; "
                "annotate more text, or ask a language model (--judge endpoint)"
            )
        self._encoder = encoder
        self._vectors = self._encoded([chunk.text for chunk in reference])
        self._reference = np.stack([self._vectors[chunk.text] for chunk in reference])
        self._carried = [frozenset(label.concept_id for label in chunk.labels) for chunk in reference]
        self._scales: dict[tuple[int, str], Float64[np.ndarray, " 4"]] = {}

    def rate(self, texts: Sequence[str], cards: Sequence[Card]) -> Float64[np.ndarray, " n"]:
        """Rate n pairs.

        Args:
            texts: a passage each.
            cards: a concept each.

        Returns:
            [n] whole numbers 1 to 5; NaN for a concept that fewer than fifty passages lack.
        """
        self._vectors |= self._encoded([text for text in texts if text not in self._vectors])
        of_card = self._encoded([_text_of(card) for card in cards])
        rated = np.empty(len(texts))
        for i, (text, card) in enumerate(zip(texts, cards, strict=True)):
            key = (card.concept_id, _text_of(card))
            vector = of_card[key[1]]
            if key not in self._scales:
                self._scales[key] = self._scale(card.concept_id, vector)
            rated[i] = _rating(_cosine(self._vectors[text], vector), self._scales[key])
        return rated

    def _scale(self, concept_id: int, vector: Float32[np.ndarray, " E"]) -> Float64[np.ndarray, " 4"]:
        lacks = np.array([concept_id not in carried for carried in self._carried])
        if lacks.sum() < MIN_REFERENCE:
            return np.full(len(RANDOM_SHARES), np.nan)
        cosines = np.round((self._reference[lacks] @ vector).astype(np.float64), 4)
        return np.asarray(np.quantile(cosines, RANDOM_SHARES))

    def _encoded(self, texts: Sequence[str]) -> dict[str, Float32[np.ndarray, " E"]]:
        unique = sorted(set(texts))
        return dict(zip(unique, self._encoder.encode(unique), strict=True)) if unique else {}


def _text_of(card: Card) -> str:
    return f"{card.name}. {card.description}"


def _cosine(a: Float32[np.ndarray, " E"], b: Float32[np.ndarray, " E"]) -> float:
    return round(float(a @ b), 4)


def _rating(cosine: float, scale: Float64[np.ndarray, " 4"]) -> float:
    return float("nan") if np.isnan(scale).any() else 1.0 + float((cosine > scale).sum())
