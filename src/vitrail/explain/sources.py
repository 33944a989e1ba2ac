"""Training passages that resemble an answer, found through the transducer and a FAISS index (§6.1.3, B.1).

A span's mean composed state → transducer → the annotator's embedding space → nearest training chunks, the
best hundred of which are ranked again with the exact cached vectors. That is similarity in the model's own
geometry, not influence. Beside it stands what needs no model: the longest run of tokens that answer and
passage share word for word. `Q` spans, `R` indexed chunks, `D` model width, `E` embedding width.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from jaxtyping import Float, Int
from numpy import ndarray
from pydantic import BaseModel, ConfigDict
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from vitrail.artifacts import read_json, read_manifest, read_whole
from vitrail.atlas import AnnotatedCorpus, Chunk
from vitrail.errors import ArtifactError
from vitrail.explain.document import Overlap
from vitrail.explain.transducer import Transducer, load_transducer
from vitrail.text import Tokenizer

NUM_RERANKED = 100
NUM_PROBES = 16


class Recall(BaseModel):
    """How often a training chunk's own states lead back to it.

    Attributes:
        at10: share of the n queries whose own chunk is among the ten nearest.
        ci95: 95 % interval of `at10`.
        chance: ten chunks drawn at random.
        bm25: the same for word matching with the chunk's full text as the query; None where the index is
            too large for it.
        bm25_ci95: 95 % interval of `bm25`.
        n: training chunks that the transducer never saw, drawn by seed.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    at10: float
    ci95: tuple[float, float]
    chance: float
    bm25: float | None
    bm25_ci95: tuple[float, float] | None
    n: int


@dataclass(frozen=True)
class Hit:
    """A training chunk and the cosine of its embedding with the span's."""

    chunk: Chunk
    similarity: float


@dataclass(frozen=True)
class EmbeddingSpace:
    """The annotator's embeddings, centred: all cosines are taken after the corpus mean is subtracted.

    Attributes:
        vectors: [A E] cached fp16 embeddings of all A annotated chunks, memory-mapped.
        mean: [E] mean over the indexed chunks.
    """

    vectors: Any
    mean: Float[ndarray, " E"]

    def unit(self, rows: Int[ndarray, " n"]) -> Float[ndarray, "n E"]:
        """Centred unit vectors of some chunks.

        Args:
            rows: [n] rows of the annotated corpus.

        Returns:
            [n E] fp32; zero for a chunk without an embedding.
        """
        vectors = np.asarray(self.vectors[rows], dtype=np.float32)
        centred = (vectors - self.mean) * vectors.any(axis=1, keepdims=True)
        norms = np.linalg.norm(centred, axis=1, keepdims=True)
        return np.asarray(centred / np.maximum(norms, 1e-12), dtype=np.float32)


class Index:
    """The training-data index of one model, read from its directory."""

    def __init__(
        self,
        model_id: str,
        corpus: AnnotatedCorpus,
        space: EmbeddingSpace,
        transducer: Transducer,
        faiss_index: Any,
        rows: Int[ndarray, " R"],
        recall: Recall | None,
    ) -> None:
        """Put the parts together; `Index.open` reads them.

        Args:
            model_id: of the only model whose states it understands.
            corpus: where texts and vectors are looked up.
            space: the embedding space.
            transducer: from states to that space.
            faiss_index: R centred unit vectors, inner product.
            rows: [R] row of each indexed chunk in the annotated corpus.
            recall: its measured quality; None while it is being built.
        """
        self.model_id = model_id
        self.recall = recall
        self._corpus = corpus
        self._space = space
        self._transducer = transducer
        self._faiss = faiss_index
        self._rows = rows

    @classmethod
    def open(cls, path: Path) -> "Index":
        """Open an index; its lists are memory-mapped.

        Args:
            path: directory made by `build_index`, beside the annotated corpus it was made from.

        Returns:
            the index.

        Raises:
            ArtifactError: missing or damaged, or the annotated corpus is gone or another one.
        """
        manifest = read_whole(path, "index")
        annotated = manifest.inputs["annotated"]
        annotated_dir = (path.resolve() / annotated.path).resolve()
        if read_manifest(annotated_dir, "annotated").id != annotated.id:
            raise ArtifactError(f"{path}: made from another version of {annotated_dir}; build the index again")
        corpus = AnnotatedCorpus.open(annotated_dir)
        try:
            faiss_index = faiss.read_index(str(path / "index.faiss"), faiss.IO_FLAG_MMAP)
            rows = pq.read_table(path / "rows.parquet")["row"].to_numpy()
            mean = load_file(path / "space.safetensors")["mean"].numpy()
        except (OSError, RuntimeError, KeyError, SafetensorError, pa.ArrowException) as error:
            reason = str(error).splitlines()[0]
            raise ArtifactError(f"{path}: damaged index ({reason}); build it again") from error
        use_probes(faiss_index)
        return cls(
            model_id=manifest.inputs["model"].id,
            corpus=corpus,
            space=EmbeddingSpace(corpus.embeddings(), mean),
            transducer=load_transducer(path / "transducer.safetensors"),
            faiss_index=faiss_index,
            rows=rows,
            recall=Recall.model_validate(read_json(path / "recall.json")),
        )

    @property
    def corpus(self) -> AnnotatedCorpus:
        """The annotated corpus that its passages come from."""
        return self._corpus

    @property
    def num_passages(self) -> int:
        """R, how many passages can be found."""
        return len(self._rows)

    def require_model(self, model_id: str) -> None:
        """Refuse states of another model: the transducer would map them to meaningless places.

        Args:
            model_id: manifest id of the model that wrote the answer.

        Raises:
            ArtifactError: it is not the index's model.
        """
        if model_id != self.model_id:
            raise ArtifactError(
                f"index was built for model {self.model_id[:12]}, the answer is from model {model_id[:12]}; "
                "run `vitrail index build` for this model"
            )

    def search_rows(self, states: Float[Tensor, "Q D"], k: int) -> tuple[Int[ndarray, "Q n"], Float[ndarray, "Q n"]]:
        """The nearest training chunks as rows of the annotated corpus.

        Args:
            states: [Q D] mean composed states.
            k: how many of each, at most R.

        Returns:
            [Q n] rows and their cosines, best first; n = min(k, R, 100).
        """
        width = self._transducer.hidden_1.in_features
        if states.shape[1] != width:
            raise ArtifactError(f"index was built for states of width {width}, got {states.shape[1]}")
        queries = self._transducer(states.float().cpu()).numpy()
        _, found = self._faiss.search(queries, min(NUM_RERANKED, len(self._rows)))
        return self._rerank(queries, found, k)

    def search(self, states: Float[Tensor, "Q D"], k: int = 5) -> list[list[Hit]]:
        """The nearest training chunks.

        Args:
            states: [Q D] mean composed states of Q spans.
            k: how many of each.

        Returns:
            for each span its hits, most similar first.
        """
        rows, similarities = self.search_rows(states, k)
        return [
            [Hit(self._corpus.chunk(int(row)), float(value)) for row, value in zip(*pair, strict=True) if row >= 0]
            for pair in zip(rows, similarities, strict=True)
        ]

    def _rerank(
        self, queries: Float[ndarray, "Q E"], found: Int[ndarray, "Q m"], k: int
    ) -> tuple[Int[ndarray, "Q n"], Float[ndarray, "Q n"]]:
        """Order candidates by exact cosine, equal ones by row; -1 (an empty slot of FAISS) goes last."""
        rows = np.where(found >= 0, self._rows[found], -1)
        vectors = self._space.unit(self._rows[found].ravel()).reshape(*found.shape, -1)
        exact = np.where(found >= 0, np.einsum("qme,qe->qm", vectors, queries), -2.0)
        order = np.stack([np.lexsort((rows[q], -exact[q])) for q in range(len(rows))])[:, :k]
        return np.take_along_axis(rows, order, 1), np.take_along_axis(exact, order, 1)


def use_probes(faiss_index: Any) -> None:
    """Let an inverted-file index look into its nearest lists (the file does not keep that number).

    Args:
        faiss_index: any FAISS index; a flat one is left alone.
    """
    if isinstance(faiss_index, faiss.IndexIVF):
        faiss_index.nprobe = min(NUM_PROBES, faiss_index.nlist)


def span_means(states: Float[Tensor, "B T D"], spans: Int[Tensor, "B T"], num_spans: int) -> Float[Tensor, "J D"]:
    """Mean state of each span.

    Args:
        states: [B T D] composed states.
        spans: [B T] number of the span that a position belongs to; -1 for none.
        num_spans: J.

    Returns:
        [J D] means, fp32; zeros for a span without positions.
    """
    is_inside = spans >= 0
    sums = torch.zeros(num_spans, states.shape[-1], device=states.device)
    sums.index_add_(0, spans[is_inside], states[is_inside].float())
    counts = torch.bincount(spans[is_inside], minlength=num_spans)
    return sums / counts.clamp(min=1)[:, None]


def best_overlap(answer_ids: Sequence[int], passage: str, tokenizer: Tokenizer) -> Overlap:
    """The longest run of tokens that an answer and a passage share.

    Args:
        answer_ids: tokens of the answer.
        passage: text of a training chunk.
        tokenizer: of the model.

    Returns:
        the run as text, and its length; length 0 where nothing is shared.
    """
    answer, other = list(answer_ids), tokenizer.encode(passage)
    match = SequenceMatcher(None, answer, other, autojunk=False).find_longest_match()
    run = answer[match.a : match.a + match.size]
    return Overlap(text=tokenizer.decode(run), num_tokens=match.size)
