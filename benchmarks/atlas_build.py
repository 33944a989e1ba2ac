"""Where the time of building an atlas goes, stage by stage, and how much memory it takes.

    python benchmarks/atlas_build.py CORPUS [--concepts 512] [--cache DIR]

First the stages one after the other, as the build runs them, in processor seconds (other work on the machine does not
count) with the peak memory so far: reading, tags, vectors, concepts (clusters, merging, selection), names. Tags are
encoded twice, with an empty and with a filled cache. Then `build_atlas` as a whole, heads of the annotator and all, in
a fresh process: wall time and peak memory, which is what a user sees.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import faiss
from threadpoolctl import threadpool_limits

from vitrail.atlas import AtlasSettings, build_atlas
from vitrail.atlas.concepts.describing import say_from_tags
from vitrail.atlas.concepts.finding import find_concepts
from vitrail.atlas.concepts.space import encode
from vitrail.atlas.sample import gather_chunks
from vitrail.atlas.tags.tagging import tag_chunks
from vitrail.corpus import Corpus

T = TypeVar("T")


def stage(name: str, call: Callable[[], T]) -> T:
    started = time.process_time()
    result = call()
    print(f"  {name:<24}{time.process_time() - started:8.2f} s   peak {_peak_mb():6.0f} MB", flush=True)
    return result


def stages(corpus: Path, settings: AtlasSettings, cache: Path) -> None:
    seed = settings.seed
    chunks = stage("read and chunk", lambda: gather_chunks(Corpus.open(corpus).documents(), settings))
    tagging = stage("tags", lambda: tag_chunks(chunks.texts, settings.max_tags))
    stage("vectors, cache empty", lambda: encode(tagging, chunks, seed, settings.tag_encoder, cache))
    encoded = stage("vectors, cache filled", lambda: encode(tagging, chunks, seed, settings.tag_encoder, cache))
    found = stage("concepts", lambda: find_concepts(encoded, tagging, chunks, settings))
    labelled = found.selection.labelled
    stage("names", lambda: say_from_tags(found.detector, labelled, encoded.space, tagging, chunks))
    print(f"  {len(chunks.texts)} chunks, {len(tagging.table.tags)} tags, {len(labelled)} concepts")


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--concepts", type=int, default=512)
    parser.add_argument("--cache", type=Path, help="a new folder; a temporary one if left out")
    parser.add_argument("--whole", action="store_true", help="only build, in this process (used by the second part)")
    options = parser.parse_args()
    settings = AtlasSettings(num_concepts=options.concepts)
    with tempfile.TemporaryDirectory() as folder:
        if options.whole:
            started = time.perf_counter()
            manifest = build_atlas(options.corpus, Path(folder) / "atlas", settings)
            seconds = time.perf_counter() - started
            rate = manifest.counts["chunks"] / seconds
            print(f"  build_atlas: {seconds:.1f} s, {rate:.0f} chunks/s, peak {_peak_mb():.0f} MB")
            return
        faiss.omp_set_num_threads(1)
        with threadpool_limits(1):
            print("stages, one thread, processor seconds:")
            stages(options.corpus, settings, options.cache or Path(folder) / "cache")
        print("whole, wall time:", flush=True)
        command = [sys.executable, __file__, str(options.corpus), "--concepts", str(options.concepts), "--whole"]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
