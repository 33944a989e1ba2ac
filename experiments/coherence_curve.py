"""The coherence-vs-k curve of a corpus: which number of clusters to take (§4.2.2).

    python experiments/coherence_curve.py CORPUS [--clusters 160 320 640 1280 2560]
        [--cache DIR] [--out docs/results/coherence_curve.csv]

One row for each number of clusters: how many are sound, how many concepts are left after merging, the share of all
tags in them, and their coherence. `num_concepts` of the atlas times 2.5 is the number it clusters into.
"""

import argparse
from dataclasses import asdict, fields
from pathlib import Path

import faiss
from tables import add_row
from threadpoolctl import threadpool_limits

from vitrail.atlas.concepts.curve import CurvePoint, coherence_curve
from vitrail.atlas.concepts.space import encode
from vitrail.atlas.sample import gather_chunks
from vitrail.atlas.settings import AtlasSettings
from vitrail.atlas.tags.tagging import tag_chunks
from vitrail.corpus import Corpus


def main() -> None:
    """One row a number of clusters."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--clusters", type=int, nargs="+", default=[160, 320, 640, 1280, 2560])
    parser.add_argument("--chunks", type=int, default=40_000)
    parser.add_argument("--cache", type=Path, help="folder that keeps vectors of tags between runs")
    parser.add_argument("--out", type=Path, default=Path("docs/results/coherence_curve.csv"))
    options = parser.parse_args()
    settings = AtlasSettings(max_chunks=options.chunks)
    faiss.omp_set_num_threads(1)
    with threadpool_limits(1):
        chunks = gather_chunks(Corpus.open(options.corpus).documents(), settings)
        tagging = tag_chunks(chunks.texts, settings.max_tags)
        space = encode(tagging, chunks, settings.seed, cache=options.cache).space
        for num_clusters in options.clusters:
            (point,) = coherence_curve(space, [num_clusters], settings.seed)
            add_row(options.out, [field.name for field in fields(CurvePoint)], asdict(point))
            print(point, flush=True)


if __name__ == "__main__":
    main()
