"""Training passages that carry a concept best, and beginnings of held-out ones to try.

The table concept → best rows is made once, when it is first asked for, in one pass over the annotated
corpus; it keeps a few row numbers a concept, so memory stays flat.
"""

import heapq
import threading
from collections import defaultdict
from functools import cached_property

from vitrail.atlas import AnnotatedCorpus, Chunk

NUM_EXAMPLES = 5
NUM_PROMPTS = 6
PROMPT_WORDS = 12
_PROBES = 240

_Best = dict[int, list[tuple[float, int]]]


class Examples:
    """Passages of one annotated corpus."""

    def __init__(self, corpus: AnnotatedCorpus) -> None:
        """Remember the corpus; nothing is read yet.

        Args:
            corpus: with labels of known concepts.
        """
        self._corpus = corpus
        self._lock = threading.Lock()
        self._table: _Best | None = None

    def of(self, concept_id: int) -> list[tuple[Chunk, float]]:
        """The best training passages of a known concept. The first call reads the whole corpus.

        Args:
            concept_id: its id.

        Returns:
            passages with the annotator's scores, best first.
        """
        with self._lock:
            if self._table is None:
                self._table = _best_rows(self._corpus)
        best = sorted(self._table.get(concept_id, []), reverse=True)
        return [(self._corpus.chunk(-row), score) for score, row in best]

    @cached_property
    def prompts(self) -> list[str]:
        """Beginnings of held-out passages of different concepts, from all over the corpus."""
        found: dict[int, str] = {}
        stride = max(1, self._corpus.num_chunks // _PROBES)
        for row in range(stride // 2, self._corpus.num_chunks, stride):
            chunk = self._corpus.chunk(row)
            words = chunk.text.split()
            if chunk.split == "heldout" and chunk.labels and len(words) >= 2 * PROMPT_WORDS:
                found.setdefault(chunk.labels[0].concept_id, " ".join(words[:PROMPT_WORDS]))
            if len(found) == NUM_PROMPTS:
                break
        return list(found.values())


def _best_rows(corpus: AnnotatedCorpus) -> _Best:
    """For each concept its best (score, -row), so that of equal scores the earlier row wins."""
    best: _Best = defaultdict(list)
    for chunk in corpus.chunks():
        if chunk.split != "train":
            continue
        for label in chunk.labels:
            heap, entry = best[label.concept_id], (label.score, -chunk.row)
            if len(heap) < NUM_EXAMPLES:
                heapq.heappush(heap, entry)
            else:
                heapq.heappushpop(heap, entry)
    return dict(best)
