"""A corpus of three row groups, so that there are shards to share out; its atlas is that of the topics."""

import itertools
import json
from pathlib import Path
from pydoc_data.topics import topics

import pytest

from vitrail.artifacts import Manifest
from vitrail.atlas import annotate_corpus
from vitrail.corpus import CorpusSettings, import_corpus

NUM_DOCUMENTS = 2_060
SHARD_BYTES = 1
"""A row group fills a shard."""


def write_paragraphs(folder: Path, num_documents: int) -> Path:
    """Import the paragraphs of the topics, over and over, the beginning of each as a document of its own."""
    folder.mkdir(parents=True)
    paragraphs = [text for name in sorted(topics) for text in topics[name].split("\n\n") if text.strip()]
    records = (
        {"text": f"{number}. {text[:120]}", "source": f"paragraph/{number % 7}", "domain": f"d{number % 3}"}
        for number, text in enumerate(itertools.islice(itertools.cycle(paragraphs), num_documents))
    )
    raw = folder / "paragraphs.jsonl"
    raw.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    import_corpus([raw], folder / "corpus", CorpusSettings())
    return folder / "corpus"


@pytest.fixture(scope="session")
def atlas(run: Path) -> Path:
    return run / "atlas"


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_paragraphs(tmp_path_factory.mktemp("annotated") / "run", NUM_DOCUMENTS)


@pytest.fixture(scope="session")
def undisturbed(corpus: Path, atlas: Path) -> tuple[Path, Manifest]:
    """What one process makes of the corpus in one go, shard by shard."""
    out = corpus.parent / "annotated"
    return out, annotate_corpus(corpus, atlas, out, shard_bytes=SHARD_BYTES)
