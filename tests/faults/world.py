"""A small corpus of simple sentences, and the commands that lead from it to an index in a few seconds."""

import hashlib
import json
import random
import shutil
from pathlib import Path

from vitrail.artifacts import read_manifest

_WORDS = {
    "sea": ("The harbour", "The old ship", "A fisherman", "The tide", "The lighthouse", "The captain"),
    "garden": ("The gardener", "A red rose", "The apple tree", "The hedge", "The orchard", "The seedling"),
    "court": ("The judge", "A young lawyer", "The jury", "The witness", "The verdict", "The clerk"),
    "kitchen": ("The baker", "Fresh bread", "The oven", "A warm soup", "The cook", "The recipe"),
    "music": ("The violin", "A choir", "The pianist", "The concert", "The drummer", "The melody"),
    "weather": ("The storm", "A cold wind", "The cloud", "The thunder", "The winter snow", "The morning fog"),
}
_VERBS = ("waits for", "follows", "remembers", "stands near", "comes before", "belongs with", "depends on")
_TIMES = ("in the evening", "before dawn", "every summer", "at the market", "near the river", "for many years")

STAGES = ("corpus", "atlas", "annotated", "packed", "model", "index")
TRAINING = """
total_tokens: 5000
batch_size: 4
precision: fp32
checkpoint_every_steps: 3
model: {width: 32, num_layers: 2, num_heads: 2, intermediate_size: 64, block: 16, discovered_ratio: 1.0,
        discovered_rank: 8}
heldout: {every_steps: 10, sequences: 4}
"""


def write_texts(path: Path, num_documents: int = 400, seed: int = 0) -> Path:
    """Documents of a few sentences, each about one theme, as JSONL."""
    draw = random.Random(seed)
    with path.open("w", encoding="utf-8") as file:
        for _ in range(num_documents):
            theme = draw.choice(sorted(_WORDS))
            text = " ".join(_sentence(draw, theme) for _ in range(draw.randint(4, 8)))
            file.write(json.dumps({"text": text, "source": theme, "domain": theme}) + "\n")
    return path


def _sentence(draw: random.Random, theme: str) -> str:
    subject, other = draw.sample(_WORDS[theme], 2)
    return f"{subject} {draw.choice(_VERBS)} {other.lower()} {draw.choice(_TIMES)}."


class World:
    """The inputs and the finished stages of one folder, which no test may change.

    Attributes:
        wall_s: what each stage took, without faults.
        num_changes: how many changes of files each made (`command.Moment`).
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.texts = write_texts(folder / "texts.jsonl")
        self.config = folder / "train.yaml"
        self.config.write_text(TRAINING, encoding="utf-8")
        self.wall_s: dict[str, float] = {}
        self.num_changes: dict[str, int] = {}

    def copy(self, folder: Path) -> "World":
        """A world of its own in another folder, for tests that damage it."""
        copy = World(folder)
        for stage in STAGES:
            shutil.copytree(self.of(stage), copy.of(stage))
        return copy

    def of(self, stage: str) -> Path:
        return self.folder / stage

    def words(self, stage: str, out: Path) -> list[str | Path]:
        """The command that makes a stage from the finished ones before it.

        Args:
            stage: one of `STAGES`.
            out: the directory to make.
        """
        corpus, atlas, annotated, packed, model, _ = map(self.of, STAGES)
        commands: dict[str, list[str | Path]] = {
            "corpus": ["corpus", "import", self.texts],
            "atlas": ["atlas", "build", corpus, "--num_concepts", "12"],
            "annotated": ["atlas", "annotate", corpus, "--atlas", atlas],
            "packed": ["pack", annotated, "--tokenizer", "train:400", "--length", "80", "--long_chunks", "drop"],
            "model": ["train", self.config, "--packed", packed, "--logs", self.folder / "logs"],
            "index": [
                *("index", "build", model, annotated, "--packed", packed),
                *("--fit_chunks", "100", "--recall_queries", "20", "--hidden_width", "16"),
            ],
        }
        return [*commands[stage], "--out", out, "--json"]


def content(folder: Path) -> dict[str, str]:
    """Relative path → hash of every content file of an artifact, without hidden ones (unfinished copies)."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in ("manifest.json", "provenance.json") and path.name[0] != "."
    }


def assert_whole(folder: Path) -> None:
    """Every file that the manifest names is there, byte for byte, and no other."""
    assert content(folder) == read_manifest(folder).files


def assert_nothing_torn(place: Path) -> None:
    """Of the directories in a place, hidden ones included, those with a manifest are whole."""
    for folder in place.iterdir():
        if (folder / "manifest.json").exists():
            assert_whole(folder)


def entries(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())
