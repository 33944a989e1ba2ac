"""Build the training-data index of a model (§4.6, §6.1.3, B.1).

Indexed are exactly the chunks that the model was trained on, by the vectors that the annotator cached: the
model runs only over the sample of chunks that the transducer is fitted on. What it is worth is measured
on chunks that were kept from the fit: their own states go in, and their own chunk should come back.
`R` indexed chunks, `D` model width, `E` embedding width.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import faiss
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from jaxtyping import Bool, Float, Int
from numpy import ndarray
from pydantic import Field
from safetensors.torch import save_file
from threadpoolctl import threadpool_limits
from torch import Tensor

from vitrail.artifacts import Manifest, Stage, read_manifest, write_json
from vitrail.atlas import AnnotatedCorpus
from vitrail.errors import ArtifactError
from vitrail.explain.bm25 import bm25_scores
from vitrail.explain.inputs import deployed_states
from vitrail.explain.sources import EmbeddingSpace, Index, Recall, span_means, use_probes
from vitrail.explain.transducer import fit_transducer, save_transducer
from vitrail.metrics import mean_interval
from vitrail.model import ConceptLM, load_model
from vitrail.packed import PackedCorpus
from vitrail.settings import Seed, Settings

SLAB_ROWS = 65_536
SEQUENCES_PER_PASS = 32
TRAIN_ROWS_PER_LIST = 64
MAX_BM25_ROWS = 200_000
SUBVECTOR = 16
"""Numbers in one code byte: 64 times smaller than fp32."""


class IndexSettings(Settings):
    """How an index is built.

    Attributes:
        fit_chunks: training chunks that the transducer is fitted on.
        recall_queries: further training chunks, kept from the fit, that measure recall.
        hidden_width: of the transducer's two hidden layers.
        min_rows_ivf: from this many chunks on vectors are compressed (IVF, PQ); below, they are kept flat.
        seed: of the samples and the fit.
    """

    fit_chunks: Annotated[int, Field(ge=1)] = 6000
    recall_queries: Annotated[int, Field(ge=1)] = 500
    hidden_width: Annotated[int, Field(ge=1)] = 256
    min_rows_ivf: Annotated[int, Field(ge=1)] = 20_000
    seed: Seed = 0


def build_index(
    model_dir: Path, annotated_dir: Path, packed_dir: Path, out: Path, settings: IndexSettings | None = None
) -> Manifest:
    """Build the index of one model over its training chunks.

    Args:
        model_dir: the model; the index refuses any other.
        annotated_dir: its corpus, with cached embeddings; texts are looked up there later.
        packed_dir: the token shards that the model was trained on.
        out: directory to make.
        settings: sizes and seed.

    Returns:
        the manifest; `recall.json` beside it holds the measured recall.

    Raises:
        ArtifactError: an input is not what it should be, or too few chunks for a fit.

    Cost: a forward pass over the sampled chunks; the rest is linear in the number of chunks.
    """
    settings = settings or IndexSettings()
    inputs = {"model": model_dir, "annotated": annotated_dir, "packed": packed_dir}
    stage = Stage(out, "index", settings.model_dump(), inputs)
    if stage.is_done:
        return read_manifest(out, "index")
    with stage.write() as writing:
        recall, num_rows = _build(model_dir, annotated_dir, packed_dir, writing.dir, settings)
        write_json(writing.dir / "recall.json", recall.model_dump())
        writing.counts["num_chunks"] = num_rows
        writing.counts["num_recall_queries"] = recall.n
    return read_manifest(out, "index")


def _build(
    model_dir: Path, annotated_dir: Path, packed_dir: Path, out: Path, settings: IndexSettings
) -> tuple[Recall, int]:
    corpus, packed = AnnotatedCorpus.open(annotated_dir), PackedCorpus.open(packed_dir)
    if not corpus.embeddings().shape[1]:
        raise ArtifactError(
            f"{annotated_dir}: its chunks have no vectors to search by; import the release again with --encode"
        )
    rows = _trained_rows(packed)
    space = EmbeddingSpace(corpus.embeddings(), _mean_embedding(corpus, rows))
    states, sampled = _sampled_states(load_model(model_dir), packed, settings)
    is_query = np.arange(len(sampled)) >= len(sampled) - min(settings.recall_queries, len(sampled) // 4)
    targets = space.unit(sampled)
    is_fitted = ~is_query & targets.any(axis=1)
    if not is_fitted.any() or not is_query.any():
        raise ArtifactError(f"{packed_dir}: {len(sampled)} training chunks are too few for an index; add text")
    with _one_thread():
        transducer = fit_transducer(
            states[torch.from_numpy(is_fitted)],
            torch.from_numpy(targets[is_fitted]),
            settings.hidden_width,
            settings.seed,
        )
        faiss_index = _faiss_index(space, rows, settings)
    index = Index(read_manifest(model_dir).id, corpus, space, transducer, faiss_index, rows, recall=None)
    recall = _measure_recall(index, corpus, rows, sampled[is_query], states[torch.from_numpy(is_query)])
    faiss.write_index(faiss_index, str(out / "index.faiss"))
    save_transducer(transducer, out / "transducer.safetensors")
    save_file({"mean": torch.from_numpy(space.mean)}, out / "space.safetensors")
    pq.write_table(pa.table({"row": rows}), out / "rows.parquet")
    return recall, len(rows)


def _trained_rows(packed: PackedCorpus) -> Int[ndarray, " R"]:
    """Rows of the annotated corpus that stand in the training shards, ascending."""
    num = packed.num_sequences("train")
    parts = [packed.batch("train", range(start, min(start + 256, num))).rows.numpy() for start in range(0, num, 256)]
    return np.unique(np.concatenate(parts)) if parts else np.zeros(0, dtype=np.int64)


def _mean_embedding(corpus: AnnotatedCorpus, rows: Int[ndarray, " R"]) -> Float[ndarray, " E"]:
    vectors, total, count = corpus.embeddings(), 0.0, 0
    for start in range(0, len(rows), SLAB_ROWS):
        part = np.asarray(vectors[rows[start : start + SLAB_ROWS]], dtype=np.float64)
        total, count = total + part.sum(axis=0), count + int(part.any(axis=1).sum())
    return np.asarray(total / max(count, 1), dtype=np.float32)


def _sampled_states(
    model: ConceptLM, packed: PackedCorpus, settings: IndexSettings
) -> tuple[Float[Tensor, "n D"], Int[ndarray, " n"]]:
    """Mean composed states of the chunks of randomly drawn training sequences, and their rows.

    Each pass runs on one thread, several passes side by side: the same numbers on any number of cores.
    """
    num = packed.num_sequences("train")
    order = np.random.default_rng(settings.seed).permutation(num).tolist()
    per_sequence = max(1.0, len(packed.batch("train", order[:SEQUENCES_PER_PASS]).rows) / min(num, SEQUENCES_PER_PASS))
    wanted = int((settings.fit_chunks + settings.recall_queries) / per_sequence) + 1
    groups = [order[i : i + SEQUENCES_PER_PASS] for i in range(0, min(num, wanted), SEQUENCES_PER_PASS)]

    def run(group: list[int]) -> tuple[Tensor, Tensor]:
        batch = packed.batch("train", group)
        with torch.inference_mode():
            states = deployed_states(model, model.hidden(batch.tokens))
            return span_means(states, batch.chunk, batch.num_chunks), batch.rows

    num_threads = torch.get_num_threads()
    with ThreadPoolExecutor(num_threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        parts = list(pool.map(run, groups))
    torch.set_num_threads(num_threads)
    return torch.cat([part[0] for part in parts]).clone(), torch.cat([part[1] for part in parts]).numpy()


def _faiss_index(space: EmbeddingSpace, rows: Int[ndarray, " R"], settings: IndexSettings) -> Any:
    width = space.mean.shape[0]
    if len(rows) < settings.min_rows_ivf or width % SUBVECTOR:
        index: Any = faiss.IndexFlatIP(width)
    else:
        num_lists = 2 ** int(np.log2(4 * np.sqrt(len(rows))))
        factory = f"IVF{num_lists},PQ{width // SUBVECTOR}np"
        index = faiss.index_factory(width, factory, faiss.METRIC_INNER_PRODUCT)
        size = min(len(rows), num_lists * TRAIN_ROWS_PER_LIST)
        sample = np.random.default_rng(settings.seed).choice(len(rows), size, replace=False)
        index.train(space.unit(rows[np.sort(sample)]))
    for start in range(0, len(rows), SLAB_ROWS):
        index.add(space.unit(rows[start : start + SLAB_ROWS]))
    use_probes(index)
    return index


def _measure_recall(
    index: Index,
    corpus: AnnotatedCorpus,
    rows: Int[ndarray, " R"],
    queries: Int[ndarray, " n"],
    states: Float[Tensor, "n D"],
) -> Recall:
    found, _ = index.search_rows(states, 10)
    own = mean_interval((found == queries[:, None]).any(axis=1).astype(np.float64))
    bm25 = mean_interval(_bm25_hits(corpus, rows, queries)) if len(rows) <= MAX_BM25_ROWS else None
    return Recall(
        at10=own.value,
        ci95=(own.low, own.high),
        chance=min(1.0, 10 / len(rows)),
        bm25=bm25.value if bm25 else None,
        bm25_ci95=(bm25.low, bm25.high) if bm25 else None,
        n=len(queries),
    )


def _bm25_hits(corpus: AnnotatedCorpus, rows: Int[ndarray, " R"], queries: Int[ndarray, " n"]) -> Float[ndarray, " n"]:
    """1 where at most nine chunks match the query chunk's words better than it does itself, else 0."""
    is_indexed = np.zeros(corpus.num_chunks, dtype=bool)
    is_indexed[rows] = True
    texts = _texts(corpus, is_indexed)
    places = np.searchsorted(rows, queries)
    scores = bm25_scores(texts, [texts[place] for place in places])
    better = (scores > scores[np.arange(len(queries)), places][:, None]).sum(axis=1)
    return np.asarray(better < 10, dtype=np.float64)


def _texts(corpus: AnnotatedCorpus, is_indexed: Bool[ndarray, " n"]) -> list[str]:
    return [chunk.text for chunk in corpus.chunks() if is_indexed[chunk.row]]


@contextmanager
def _one_thread() -> Iterator[None]:
    """Sums in one fixed order, whatever the number of cores."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(limits=1):
            yield
    finally:
        torch.set_num_threads(num_threads)
