"""A small real corpus, on any machine: the reference topics that come with Python, and its atlas."""

import json
import random
from pathlib import Path
from pydoc_data.topics import topics

import pytest

from vitrail.atlas import AtlasSettings, annotate_corpus, build_atlas
from vitrail.atlas.resources import Resources
from vitrail.corpus import CorpusSettings, import_corpus

SETTINGS = AtlasSettings(num_concepts=16)


def write_corpus(folder: Path) -> Path:
    """Import the topics from one JSONL file whose lines are in a random order."""
    folder.mkdir(parents=True)
    names = sorted(topics)
    random.Random(0).shuffle(names)
    records = [{"text": topics[name], "source": f"topics/{name}", "domain": name[:1]} for name in names]
    raw = folder / "topics.jsonl"
    raw.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    import_corpus([raw], folder / "corpus", CorpusSettings())
    return folder / "corpus"


@pytest.fixture(scope="session")
def cached(tmp_path_factory: pytest.TempPathFactory) -> Resources:
    """Vectors of tags, for tests that build from the same topics; they are the same with and without a cache."""
    return Resources(cache=tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory, cached: Resources) -> Path:
    """A directory with `corpus`, `atlas` and `annotated`."""
    folder = tmp_path_factory.mktemp("atlas") / "run"
    corpus = write_corpus(folder)
    build_atlas(corpus, folder / "atlas", SETTINGS, cached)
    annotate_corpus(corpus, folder / "atlas", folder / "annotated")
    return folder
