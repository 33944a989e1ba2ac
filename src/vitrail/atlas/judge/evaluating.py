"""From an annotated corpus to figures of relevance, in a directory of their own or in memory (§4.2)."""

import logging
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from vitrail.artifacts import Stage, read_json, write_json
from vitrail.atlas.annotated import AnnotatedCorpus
from vitrail.atlas.concepts.encoder import minilm
from vitrail.atlas.judge.raters import EmbeddedRater, EndpointRater, Rater
from vitrail.atlas.judge.relevance import (
    Drawn,
    IntervalOf,
    Ratings,
    RelevanceSettings,
    concept_table,
    draw,
    rate,
    report,
)
from vitrail.atlas.llm import ANSWERS_NAME, Asker, Endpoint, Journal
from vitrail.errors import ConfigError

KIND = "runs"
FIGURES_NAME = "relevance.json"

logger = logging.getLogger("vitrail.atlas.judge")


def evaluate_relevance(
    annotated_dir: Path,
    settings: RelevanceSettings,
    interval: IntervalOf,
    *,
    out: Path | None = None,
    endpoint: Endpoint | None = None,
    answers: Path | None = None,
    say: Callable[[str], None] = logger.info,
) -> dict[str, Any]:
    """Rate the labels of an annotated corpus.

    Args:
        annotated_dir: the annotated corpus.
        settings: what is rated, and by whom.
        interval: of a mean, such as `vitrail.metrics.mean_interval`.
        out: directory to be made, kind `runs`: `relevance.json`, `concepts.parquet`, `ratings.parquet`.
        endpoint: the language model's server, for the judge "endpoint".
        answers: file that keeps its answers; without it they stay beside `out` until that is finished.
        say: takes the lines that the asking says.

    Returns:
        the figures of `report`, and with a language model `verdicts`: questions by how they ended.

    Raises:
        ConfigError: the judge "endpoint" without server, model, or a place for its answers; any of these without it.
        CorpusError: nothing to rate.
        ArtifactError: not an annotated corpus, or damaged.
        RunFailed: the server is gone or too many faults; answers are kept.
    """
    _check(settings, endpoint, out, answers)
    if out is None:
        with tempfile.TemporaryDirectory() as work:
            return _evaluated(annotated_dir, settings, interval, endpoint, answers or Path(work) / ANSWERS_NAME, say)[0]
    stage = Stage(out, KIND, settings.model_dump(mode="json"), {"annotated": annotated_dir})
    if not stage.is_done:
        with stage.write() as writing:
            kept = answers or writing.work / ANSWERS_NAME
            figures, ratings = _evaluated(annotated_dir, settings, interval, endpoint, kept, say)
            library = AnnotatedCorpus.open(annotated_dir).library()
            write_json(writing.dir / FIGURES_NAME, figures)
            pq.write_table(pa.Table.from_pylist(concept_table(ratings, library)), writing.dir / "concepts.parquet")
            pq.write_table(_rating_table(ratings), writing.dir / "ratings.parquet", compression="zstd")
            writing.counts.update(ratings=len(ratings.pairs) + len(ratings.further) + len(ratings.shuffled))
    return dict(read_json(out / FIGURES_NAME))


def _evaluated(
    annotated_dir: Path,
    settings: RelevanceSettings,
    interval: IntervalOf,
    endpoint: Endpoint | None,
    answers: Path,
    say: Callable[[str], None],
) -> tuple[dict[str, Any], Ratings]:
    annotated = AnnotatedCorpus.open(annotated_dir)
    library, drawn = annotated.library(), draw(annotated, settings)
    with _rater(settings, endpoint, answers, say, drawn) as (rater, verdicts):
        ratings = rate(drawn, library, rater)
        return report(ratings, library, settings, interval) | verdicts(), ratings


@contextmanager
def _rater(
    settings: RelevanceSettings, endpoint: Endpoint | None, answers: Path, say: Callable[[str], None], drawn: Drawn
) -> Iterator[tuple[Rater, Callable[[], dict[str, Any]]]]:
    """The rater, and what is to be added to the figures when it is done."""
    if endpoint is None or settings.llm is None:
        yield EmbeddedRater(minilm(), drawn.reference), dict
        return
    with Journal(answers) as journal:
        asker = Asker(settings.llm, endpoint, journal, say)
        yield EndpointRater(asker, settings.llm.relevance), lambda: {"verdicts": asker.tally.counts()}


def _check(settings: RelevanceSettings, endpoint: Endpoint | None, out: Path | None, answers: Path | None) -> None:
    if settings.judge == "embedded":
        if endpoint is not None or settings.llm is not None:
            raise ConfigError("a language model is named, but the judge is the embedded one; add --judge endpoint")
        if answers is not None:
            raise ConfigError(
                f"{answers}: the embedded judge keeps no answers; leave --answers out, or add --judge endpoint"
            )
        return
    if endpoint is None or settings.llm is None:
        raise ConfigError(
            "the judge 'endpoint' needs a server and a model: --endpoint.url http://localhost:8000/v1 --llm.model NAME"
        )
    if out is None and answers is None:
        raise ConfigError("the answers of a language model must be kept somewhere: name --out DIR or --answers FILE")


def _rating_table(ratings: Ratings) -> pa.Table:
    drawn = ratings.drawn
    pairs = (*drawn.pairs, *drawn.further, *drawn.shuffled)
    kinds = ["label"] * len(drawn.pairs) + ["further"] * len(drawn.further) + ["shuffled"] * len(drawn.shuffled)
    values = np.concatenate([ratings.pairs, ratings.further, ratings.shuffled])
    return pa.table(
        {
            "chunk_id": [chunk.chunk_id for chunk, _ in pairs],
            "concept_id": pa.array([concept_id for _, concept_id in pairs], pa.int32()),
            "drawn": kinds,
            "rating": pa.array(values, pa.float32(), mask=np.isnan(values)),
        }
    )
