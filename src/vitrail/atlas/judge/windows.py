"""A judge of texts that is independent of the model: does this text carry that concept?

One bag-of-words logistic regression per concept, fitted on documents of split `judge` only, which neither the
model nor the atlas was built on (the annotator labels them). The unit is a *window* of about as many words as
the texts to be judged have, and a window carries a concept where a span of the chunk's label falls into
it. A score above a concept's threshold is a *hit*; the threshold is where precision equals recall on
out-of-fold windows. `KeywordScore` is the second opinion: is any of the concept's characteristic words there?

Both have the same interface: `score(texts, concept_ids)`, one concept for each text.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.sparse import csr_matrix
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from vitrail.atlas.annotated import Chunk
from vitrail.atlas.library import ConceptLibrary
from vitrail.errors import CorpusError

WINDOW_WORDS = 24
"""Words in a window: about what 48 tokens of a small vocabulary hold."""

_NUM_FOLDS = 3
_MIN_POSITIVES = 3
_MAX_FEATURES = 20_000
_NEGATIVES_PER_POSITIVE = 10
_MIN_NEGATIVES = 1000
_WORD = re.compile(r"\S+")
_NEVER = "(?!)"
"""What no text holds; an empty alternative is held by nearly all."""


@dataclass(frozen=True)
class Window:
    """A stretch of a chunk and the concepts that are in it.

    Attributes:
        text: the words.
        document_id: where it comes from.
        carried: concepts of which a label span falls into it (or whose label has no spans).
        labelled: concepts that the whole chunk is labelled with; those not carried are undecided here.
    """

    text: str
    document_id: str
    carried: frozenset[int]
    labelled: frozenset[int]


def windows_of(chunk: Chunk, num_words: int = WINDOW_WORDS) -> list[Window]:
    """A chunk cut into windows of `num_words` words; a short rest joins the last one.

    Args:
        chunk: an annotated chunk.
        num_words: words in a window.

    Returns:
        the windows, in order.
    """
    words = [match.span() for match in _WORD.finditer(chunk.text)]
    num_windows = max(1, len(words) // num_words)
    firsts = [index * num_words for index in range(num_windows)]
    edges = [words[first][0] if words else 0 for first in firsts] + [len(chunk.text)]
    labelled = frozenset(label.concept_id for label in chunk.labels)
    windows = []
    for start, stop in pairwise(edges):
        carried = frozenset(
            label.concept_id
            for label in chunk.labels
            if not label.spans or any(first < stop and last > start for first, last in label.spans)
        )
        windows.append(Window(chunk.text[start:stop], chunk.document_id, carried, labelled))
    return windows


class BagOfWords:
    """Logistic regressions on word counts, one per concept, over a shared vocabulary.

    Args:
        vectorizer: fitted on the training texts.
        weights: [n F] one row per concept fitted; zeros where there were too few positives.
        biases: [n].
    """

    def __init__(
        self, vectorizer: TfidfVectorizer, weights: Float[np.ndarray, "n F"], biases: Float[np.ndarray, " n"]
    ) -> None:
        self.vectorizer, self.weights, self.biases = vectorizer, weights, biases

    @classmethod
    def fit(
        cls,
        texts: Sequence[str],
        carried: Bool[np.ndarray, "texts n"],
        usable: Bool[np.ndarray, "texts n"] | None = None,
        *,
        seed: int = 0,
    ) -> "BagOfWords":
        """Fit every concept; negatives are sampled, and the bias is corrected for it.

        Args:
            texts: training texts.
            carried: whether a text carries each concept.
            usable: False where a text says nothing about a concept; None = all are usable.
            seed: of the sample of negatives.

        Returns:
            the classifier; a concept with fewer than three positives always scores its base rate.

        Raises:
            CorpusError: no text has a word.
        """
        vectorizer = TfidfVectorizer(
            sublinear_tf=True, max_features=_MAX_FEATURES, token_pattern=r"(?u)\b\w\w+\b", dtype=np.float64
        )
        try:
            features = csr_matrix(vectorizer.fit_transform(texts))
        except ValueError as error:
            raise CorpusError("bag of words: the texts hold no words; give longer documents") from error
        rng = np.random.default_rng(seed)
        weights = np.zeros((carried.shape[1], features.shape[1]))
        biases = np.zeros(carried.shape[1])
        for column in range(carried.shape[1]):
            kept = np.ones(len(texts), dtype=bool) if usable is None else usable[:, column]
            weights[column], biases[column] = _fit_one(features, carried[:, column], kept, rng)
        return cls(vectorizer, weights, biases)

    def probs(self, texts: Sequence[str]) -> Float[np.ndarray, "texts n"]:
        """Probability that each text carries each fitted concept."""
        features = csr_matrix(self.vectorizer.transform(texts))
        return _sigmoid(features @ self.weights.T + self.biases)

    def probs_of(self, texts: Sequence[str], columns: Int[np.ndarray, " texts"]) -> Float[np.ndarray, " texts"]:
        """Probability of one fitted concept for each text."""
        features = csr_matrix(self.vectorizer.transform(texts))
        logits = np.asarray(features.multiply(self.weights[columns]).sum(axis=1)).ravel()
        return _sigmoid(logits + self.biases[columns])


class Judge:
    """Bag-of-words logistic regressions with a threshold per concept, fitted on split `judge` alone.

    Args:
        concept_ids: the concepts it knows.
        model: their classifiers, in that order.
        thresholds: [n] probability above which a text is a hit.
    """

    name = "bag-of-words logistic regression (embedded; trained on split 'judge')"

    def __init__(self, concept_ids: Sequence[int], model: BagOfWords, thresholds: Float[np.ndarray, " n"]) -> None:
        self.concept_ids, self.model, self.thresholds = tuple(concept_ids), model, thresholds
        self._column = {concept_id: column for column, concept_id in enumerate(self.concept_ids)}

    @classmethod
    def fit(
        cls,
        chunks: Iterable[Chunk],
        concept_ids: Sequence[int],
        *,
        num_words: int = WINDOW_WORDS,
        seed: int = 0,
    ) -> "Judge":
        """Fit and calibrate on the chunks of split `judge`; all others are left out.

        Args:
            chunks: annotated chunks of any split.
            concept_ids: concepts to judge.
            num_words: words in a window: about as many as the texts to be judged have.
            seed: of folds and sampled negatives.

        Returns:
            the judge.

        Raises:
            CorpusError: there are fewer than three documents of split `judge`.
        """
        windows = [w for chunk in chunks if chunk.split == "judge" for w in windows_of(chunk, num_words)]
        documents = sorted({window.document_id for window in windows})
        if len(documents) < _NUM_FOLDS:
            raise CorpusError(
                f"judge: {len(documents)} documents of split 'judge', at least {_NUM_FOLDS} are needed; "
                "give a larger corpus"
            )
        texts = [window.text for window in windows]
        carried, usable = label_tables(windows, concept_ids)
        fold_of = np.random.default_rng(seed).permutation(len(documents)) % _NUM_FOLDS
        number = {document: fold_of[index] for index, document in enumerate(documents)}
        folds = np.array([number[window.document_id] for window in windows])
        out_of_fold = np.zeros(carried.shape)
        for fold in range(_NUM_FOLDS):
            inside = folds == fold
            rest = [text for text, held in zip(texts, inside, strict=True) if not held]
            part = BagOfWords.fit(rest, carried[~inside], usable[~inside], seed=seed)
            out_of_fold[inside] = part.probs([text for text, held in zip(texts, inside, strict=True) if held])
        thresholds = balanced_thresholds(out_of_fold, carried, usable)
        return cls(concept_ids, BagOfWords.fit(texts, carried, usable, seed=seed), thresholds)

    def score(self, texts: Sequence[str], concept_ids: Sequence[int]) -> Float[np.ndarray, " n"]:
        """Probability that each text carries its concept.

        Args:
            texts: what to judge.
            concept_ids: one for each text.

        Returns:
            probabilities.
        """
        return self.model.probs_of(texts, self._columns(concept_ids))

    def hits(self, texts: Sequence[str], concept_ids: Sequence[int]) -> Bool[np.ndarray, " n"]:
        """Whether each text's score is above the threshold of its concept."""
        thresholds = self.thresholds[self._columns(concept_ids)]
        return np.asarray(self.score(texts, concept_ids) > thresholds)

    def quality(
        self, chunks: Iterable[Chunk], split: str = "heldout", *, num_words: int = WINDOW_WORDS
    ) -> dict[str, float | int | str]:
        """How good the judge itself is on real text of another split.

        Args:
            chunks: annotated chunks of any split.
            split: the split to take, never `judge`.
            num_words: words in a window.

        Returns:
            `judge` (its name), `auc` (mean over concepts with both kinds), `hit_carrying` and `hit_other`
            (mean hit rates on windows that carry the concept and that do not), `num_windows`, `num_scored`.
        """
        windows = [w for chunk in chunks if chunk.split == split for w in windows_of(chunk, num_words)]
        carried, usable = label_tables(windows, self.concept_ids)
        probs = self.model.probs([window.text for window in windows]) if windows else np.zeros(carried.shape)
        per_concept = []
        for column, threshold in enumerate(self.thresholds):
            kept = usable[:, column]
            truth, score = carried[kept, column], probs[kept, column]
            if truth.any() and not truth.all():
                is_hit = score > threshold
                per_concept.append((roc_auc_score(truth, score), is_hit[truth].mean(), is_hit[~truth].mean()))
        auc, hit_carrying, hit_other = np.mean(per_concept, axis=0) if per_concept else (np.nan,) * 3
        return {
            "judge": self.name,
            "auc": float(auc),
            "hit_carrying": float(hit_carrying),
            "hit_other": float(hit_other),
            "num_windows": len(windows),
            "num_scored": len(per_concept),
        }

    def _columns(self, concept_ids: Sequence[int]) -> Int[np.ndarray, " n"]:
        return np.array([self._column[concept_id] for concept_id in concept_ids], dtype=np.int64)


class KeywordScore:
    """Presence of a concept's characteristic words: crude, and transparent.

    Args:
        library: gives the words.
        num_words: how many of a concept's words count.
    """

    name = "presence of any of the concept's first characteristic words"

    def __init__(self, library: ConceptLibrary, num_words: int = 10) -> None:
        self.library, self.num_words = library, num_words

    def score(self, texts: Sequence[str], concept_ids: Sequence[int]) -> Float[np.ndarray, " n"]:
        """1.0 where the text holds one of the words as a whole word (case ignored); else, or without words, 0.0."""
        return np.array(
            [
                float(bool(self._pattern(concept_id).search(text)))
                for text, concept_id in zip(texts, concept_ids, strict=True)
            ]
        )

    def _pattern(self, concept_id: int) -> re.Pattern[str]:
        words = [word for word in self.library.card("known", concept_id).words if word.strip()][: self.num_words]
        any_of_them = "|".join(map(re.escape, words)) or _NEVER
        return re.compile(rf"(?<!\w)(?:{any_of_them})(?!\w)", re.IGNORECASE)


def label_tables(
    windows: Sequence[Window], concept_ids: Sequence[int]
) -> tuple[Bool[np.ndarray, "windows n"], Bool[np.ndarray, "windows n"]]:
    """Which windows carry which concepts, and where that is decided at all.

    Args:
        windows: the windows.
        concept_ids: one column for each.

    Returns:
        `carried`, and `usable`: False where the chunk has the label but this window has none of its spans.
    """
    carried = np.zeros((len(windows), len(concept_ids)), dtype=bool)
    usable = np.ones_like(carried)
    column_of = {concept_id: column for column, concept_id in enumerate(concept_ids)}
    for row, window in enumerate(windows):
        for concept_id in window.labelled & column_of.keys():
            is_carried = concept_id in window.carried
            carried[row, column_of[concept_id]] = is_carried
            usable[row, column_of[concept_id]] = is_carried
    return carried, usable


def balanced_thresholds(
    probs: Float[np.ndarray, "windows n"],
    carried: Bool[np.ndarray, "windows n"],
    usable: Bool[np.ndarray, "windows n"],
) -> Float[np.ndarray, " n"]:
    """Per concept the threshold at which as many texts hit as carry it: precision equals recall.

    Args:
        probs: out-of-fold scores.
        carried: truth.
        usable: rows that count.

    Returns:
        thresholds; infinite for a concept that no text carries, so that nothing hits it.
    """
    thresholds = np.full(probs.shape[1], np.inf)
    for column in range(probs.shape[1]):
        kept = usable[:, column]
        num_carried = int(carried[kept, column].sum())
        ranked = np.sort(probs[kept, column])[::-1]
        if num_carried:
            below = ranked[num_carried] if num_carried < len(ranked) else 0.0
            thresholds[column] = (ranked[num_carried - 1] + below) / 2
    return thresholds


def _fit_one(
    features: csr_matrix, carried: np.ndarray, usable: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, float]:
    positives = np.flatnonzero(carried & usable)
    negatives = np.flatnonzero(~carried & usable)
    base_rate = (len(positives) + 0.5) / (len(positives) + len(negatives) + 1)
    if len(positives) < _MIN_POSITIVES or not len(negatives):
        return np.zeros(features.shape[1]), float(np.log(base_rate / (1 - base_rate)))
    wanted = max(_MIN_NEGATIVES, _NEGATIVES_PER_POSITIVE * len(positives))
    sampled = np.sort(rng.permutation(negatives)[:wanted])
    rows = np.concatenate([positives, sampled])
    model = LogisticRegression(C=10.0, solver="liblinear", random_state=0)
    model.fit(features[rows], carried[rows])
    # Leaving out negatives raised the odds by this factor.
    correction = np.log(len(sampled) / len(negatives))
    return model.coef_[0], float(model.intercept_[0] + correction)


def _sigmoid(logits: np.ndarray) -> np.ndarray:
    return np.asarray(1 / (1 + np.exp(-np.clip(logits, -60, 60))))
