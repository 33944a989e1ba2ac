"""A small world made by the real writers, and `vitrail serve` over it in a process of its own."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from vitrail.api import LoadedModel, load
from vitrail.artifacts import Stage
from vitrail.atlas import Card, Chunk, ConceptLibrary, Label
from vitrail.atlas.annotated import ChunkWriter
from vitrail.corpus import split_of
from vitrail.explain import IndexSettings, build_index
from vitrail.model import ConceptLM, ModelConfig, init_model, save_model
from vitrail.packed import PackedCorpus, PackSettings, pack_corpus
from vitrail.text import Tokenizer, train_tokenizer

TOPICS = {
    "rivers": "river delta water bank stream flood mouth bridge ferry",
    "glass": "glass pane window lead colour light kiln sand furnace",
    "trade": "export import port cargo tariff market price goods ship",
    "courts": "court judge law appeal trial jury verdict statute counsel",
    "matrices": "matrix row column rank vector inverse norm basis trace",
    "weather": "rain wind cloud storm frost snow thunder drought season",
    "music": "chord melody rhythm organ choir tempo scale tune voice",
    "railways": "train track signal station engine rail carriage tunnel platform",
    "bread": "flour yeast dough oven crust loaf bake knead grain",
    "maps": "map scale border legend contour atlas survey compass chart",
    "birds": "wing feather nest egg song flock beak migrate talon",
}
NUM_DISCOVERED, BLOCK, LENGTH = 23, 8, 128
START_S, STOP_S = 180.0, 15.0


@dataclass
class Server:
    """`vitrail serve` on a port of the loopback address.

    Attributes:
        directory: holds `model`, `index` and what they were made from.
        model: the same model in this process.
        port: fixed, so that a restarted server has the same address.
        flags: further flags of the command.
    """

    directory: Path
    model: LoadedModel
    port: int
    flags: tuple[str, ...] = ()
    process: "subprocess.Popen[str] | None" = field(default=None, repr=False)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def index(self) -> Path:
        return self.directory / "index"

    def start(self) -> None:
        command = [sys.executable, "-c", "from vitrail.cli.main import main; main()", "serve"]
        command += [str(self.directory / "model"), "--index", str(self.index), "--port", str(self.port), *self.flags]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        path = self.directory / f"serve-{self.port}.log"
        with path.open("a") as log:
            self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, text=True)
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            assert self.process.poll() is None, f"the server ended: {path.read_text()}"
            try:
                httpx.get(f"{self.url}/health", timeout=5).raise_for_status()
            except httpx.TransportError:
                time.sleep(0.1)
            else:
                return
        raise AssertionError(f"no server within {START_S} s: {path.read_text()}")

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        assert self.process is not None
        self.process.send_signal(how)
        code = self.process.wait(STOP_S)
        self.process = None
        return code

    def rss_bytes(self) -> int:
        assert self.process is not None
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        (line,) = (line for line in status.splitlines() if line.startswith("VmRSS"))
        return int(line.split()[1]) * 1024


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory with annotated, packed, model, index."""
    root = tmp_path_factory.mktemp("served")
    chunks = _chunks(500)
    cards = [*_known_cards(), *(_discovered_card(number) for number in range(NUM_DISCOVERED))]
    with Stage(root / "annotated", "annotated", {}, {}).write() as writing:
        ConceptLibrary(cards[: len(TOPICS)]).save(writing.dir / "concepts.parquet")
        writer = ChunkWriter(writing.dir, 32)
        writer.add(chunks, _embeddings(chunks))
        writer.close()
        writing.counts["chunks"] = len(chunks)
    tokenizer = train_tokenizer((chunk.text for chunk in chunks), 384)
    pack_corpus(root / "annotated", tokenizer, root / "packed", PackSettings(length=64))
    with Stage(root / "model", "model", {}, {}).write() as writing:
        save_model(_model(tokenizer), writing.dir)
        tokenizer.save(writing.dir / "tokenizer")
        ConceptLibrary(cards).save(writing.dir / "concepts.parquet")
    load(root / "model", device="cpu").calibrate(PackedCorpus.open(root / "packed")).save(root / "model")
    settings = IndexSettings.parse({"fit_chunks": 300, "recall_queries": 50, "hidden_width": 32})
    build_index(root / "model", root / "annotated", root / "packed", root / "index", settings)
    return root


@pytest.fixture(scope="session")
def server(world: Path) -> Iterator[Server]:
    running = Server(world, load(world / "model", device="cpu"), free_port())
    running.start()
    yield running
    if running.process is not None:
        running.stop()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _model(tokenizer: Tokenizer) -> ConceptLM:
    ids = {f"{name}_id": getattr(tokenizer, f"{name}_id") for name in ("pad", "bos", "eos", "eoc", "mask")}
    config = ModelConfig.parse(
        {
            "vocab_size": tokenizer.vocab_size,
            "num_layers": 3,
            "num_heads": 3,
            "num_kv_heads": 1,
            "width": 30,
            "max_length": LENGTH,
            "block": BLOCK,
            "mlp_type": "standard",
            "mlp_ratio": 2,
            "num_concepts": len(TOPICS),
            "num_discovered": NUM_DISCOVERED,
            "discovered_rank": 5,
            "top_k_known": 7,
            "top_k_known_features": 7,
            "top_k_discovered": 9,
            "norm_order": "pre",
            "tie_embeddings": True,
            **ids,
        }
    )
    model, generator = init_model(config, 0), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim == 2 and "blocks" not in name:
                # Parts of the size of the logits, so that no error can hide.
                scale = 1.0 if "emb" in name or "lm_head" in name else weight.shape[1] ** -0.5
                weight.normal_(std=scale, generator=generator)
    return model.requires_grad_(False).eval()


def _known_cards() -> list[Card]:
    cards = []
    for number, (name, words) in enumerate(TOPICS.items()):
        lift = tuple(9.0 - place for place in range(9))
        text = f"Passages about {name}."
        cards.append(Card(number, "known", name, text, "content", tuple(words.split()), lift, (), 40, 0.5, True))
    return cards


def _discovered_card(number: int) -> Card:
    return Card(
        number, "discovered", f"of / the ({number})", "", "content", ("of", "the"), (2.0, 1.5), (), 0, 0.5, True
    )


def _chunks(count: int) -> list[Chunk]:
    """Passages of ten words on one topic; the words of the topic are labelled where they stand."""
    rng = np.random.default_rng(0)
    chunks = []
    for row in range(count):
        document = f"{row // 3:05d}"
        concept_id = row // 3 % len(TOPICS)
        name = list(TOPICS)[concept_id]
        words = [*rng.choice(TOPICS[name].split(), 7), "of", "the", "and"]
        rng.shuffle(words)
        text = " ".join(words) + "."
        start = text.index(next(word for word in words if len(word) > 3))
        label = Label(concept_id, float(rng.uniform(0.6, 1.0)), ((start, start + 3),))
        place = (row, f"{document}:{row % 3}", document, 0, len(text))
        title = f"On {name}, part {row % 3}"
        chunks.append(Chunk(*place, text, (label,), f"topic/{name}", "CC0-1.0", title, "test", split_of(document)))
    return chunks


def _embeddings(chunks: list[Chunk]) -> NDArray[np.float32]:
    vocabulary = sorted({word for chunk in chunks for word in chunk.text.split()})
    directions = np.random.default_rng(1).normal(size=(len(vocabulary), 32))
    vectors = np.stack([sum(directions[vocabulary.index(word)] for word in chunk.text.split()) for chunk in chunks])
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), dtype=np.float32)


def sse(text: str) -> list[dict[str, object]]:
    """The JSON events of a stream that ended as it should."""
    events = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]", "the stream broke off"
    return [json.loads(event) for event in events[:-1]]
