"""A real model behind a real server: `vitrail serve` of a tiny untrained one, whose answers are noise."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import torch

from vitrail.artifacts import Stage
from vitrail.atlas import Card, ConceptLibrary
from vitrail.atlas.concepts.llm_cards import ToName, name_by_llm
from vitrail.atlas.library import Head
from vitrail.atlas.llm import Asker, Endpoint, Journal, LanguageModel, Prompt, builtin_text
from vitrail.atlas.tags.endpoint import EndpointTagger, tag_with_endpoint
from vitrail.atlas.tags.tagging import tag_chunks
from vitrail.errors import RunFailed
from vitrail.model import ModelConfig, init_model, save_model
from vitrail.text import train_tokenizer

TEXTS = [f"The {word} of the river and the {word} of the sea." for word in ("bank", "mouth", "bed", "delta", "tide")]
LENGTH, START_S = 1024, 120.0
TAGS = Prompt.builtin("tags")


@pytest.fixture(scope="session")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of the server."""
    model = tmp_path_factory.mktemp("tiny") / "model"
    _save_model(model)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        sys.executable,
        "-c",
        "from vitrail.cli.main import main; main()",
        "serve",
        str(model),
        "--port",
        str(port),
    ]
    log_path = model.with_name("serve.log")
    with log_path.open("w") as log:
        process = subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=log, stderr=log)
    try:
        _wait_for(f"http://127.0.0.1:{port}/health", process, log_path)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.terminate()
        process.wait(15)


def _save_model(out: Path) -> None:
    tokenizer = train_tokenizer([builtin_text("tags"), builtin_text("concept"), *TEXTS], 512)
    ids = {f"{name}_id": getattr(tokenizer, f"{name}_id") for name in ("pad", "bos", "eos", "eoc", "mask")}
    sizes = {"num_layers": 1, "num_heads": 2, "num_kv_heads": 1, "width": 16, "max_length": LENGTH, "block": 8}
    concepts = {"num_concepts": 2, "num_discovered": 3, "discovered_rank": 2, "top_k_known": 2}
    more = {"top_k_known_features": 2, "top_k_discovered": 2, "mlp_type": "standard", "mlp_ratio": 2}
    config = ModelConfig.parse({"vocab_size": tokenizer.vocab_size, **sizes, **concepts, **more, **ids})
    heads: list[tuple[Head, int]] = [("known", 2), ("discovered", 3)]
    cards = [
        Card(i, head, f"{head} {i}", "", "content", (), (), (), 1, 0.5, True)
        for head, count in heads
        for i in range(count)
    ]
    with torch.random.fork_rng(), Stage(out, "model", {}, {}).write() as writing:
        save_model(init_model(config, 0), writing.dir)
        tokenizer.save(writing.dir / "tokenizer")
        ConceptLibrary(cards).save(writing.dir / "concepts.parquet")


def _wait_for(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        assert process.poll() is None, f"the server ended: {log.read_text()}"
        try:
            httpx.get(url, timeout=5).raise_for_status()
        except httpx.TransportError:
            time.sleep(0.1)
        else:
            return
    raise AssertionError(f"no server within {START_S} s: {log.read_text()}")


def asker(url: str, folder: Path, max_fault_share: float, said: list[str], **model: object) -> Asker:
    llm = LanguageModel.parse({"model": "model", "structured": "none", "max_tokens": 16, "attempts": 1} | model)
    endpoint = Endpoint(url=url, max_concurrency=2, max_fault_share=max_fault_share, max_retries=1)
    return Asker(llm, endpoint, Journal(folder / "a.jsonl"), said.append)


def test_noise_is_counted_and_stops_the_run(url: str, tmp_path: Path) -> None:
    said: list[str] = []
    with pytest.raises(RunFailed, match=r"5 of 5 chunks got no usable answer: .*check model and prompt"):
        EndpointTagger(asker(url, tmp_path, 0.5, said), TAGS).tag(TEXTS)
    assert "chunks: 0 of 5 answered by model" in said[-1]
    assert " 0 tokens in" not in said[-1], "the server counts"
    stored = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert len(stored) == 5
    assert all(0 < record["tokens_out"] <= 16 for record in stored)


def test_noise_that_is_allowed_gives_no_tags_and_one_line(url: str, tmp_path: Path) -> None:
    tagger = EndpointTagger(asker(url, tmp_path, 1.0, []), TAGS)
    with pytest.raises(RunFailed, match="gave 0 different tags"):
        tag_with_endpoint(TEXTS, tag_chunks(TEXTS, 100), tagger, min_chunks=1, max_tags=10)


def test_names_stay_where_the_model_says_nothing_usable(url: str, tmp_path: Path) -> None:
    concepts = [ToName(name, f"On {name}.", "content", (name,), (), (TEXTS[0],)) for name in ("river", "sea")]
    said: list[str] = []
    found = name_by_llm(concepts, asker(url, tmp_path, 1.0, said), Prompt.builtin("concept"))
    assert [(one.name, one.is_by_llm) for one in found] == [("river", False), ("sea", False)]
    assert "concepts: 0 of 2 answered by model" in said[-1]


def test_too_long_a_chunk_is_rejected_and_the_others_go_on(url: str, tmp_path: Path) -> None:
    said: list[str] = []
    asking = asker(url, tmp_path, 1.0, said)
    EndpointTagger(asking, TAGS).tag([*TEXTS, "the river " * LENGTH])
    counts = asking.tally.counts()
    assert counts.pop("rejected") == 1
    assert sum(counts.values()) == 5


def test_server_without_schemas_says_so(url: str, tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match=r"5 of 5 chunks .* 5 rejected .*response_format"):
        EndpointTagger(asker(url, tmp_path, 0.5, [], structured="json_schema"), TAGS).tag(TEXTS)
