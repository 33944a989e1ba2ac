"""`vitrail generate`: several prompts of which one fails, gaps, options without effect, stops."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.model.shapes import small_config
from vitrail.model import init_model, save_model
from vitrail.text import train_tokenizer
from vitrail.text.training import MIN_VOCAB_SIZE


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bare checkpoint of random weights beside a tokenizer of bytes."""
    place = tmp_path_factory.mktemp("model")
    tokenizer = train_tokenizer(["the river and the glass"] * 3, MIN_VOCAB_SIZE)
    ids = {f"{name}_id": getattr(tokenizer, f"{name}_id") for name in ("pad", "bos", "eos", "mask", "eoc")}
    network = init_model(small_config(vocab_size=tokenizer.vocab_size, **ids), 0)
    with torch.no_grad():
        network.transformer.tok_emb.weight.mul_(20)
    save_model(network, place)
    tokenizer.save(place / "tokenizer")
    return place


def generate(model: Path, *words: str) -> tuple[int, str, str]:
    main = "from vitrail.cli.main import main; main()"
    command = [sys.executable, "-c", main, "generate", str(model), *words, "--device", "cpu"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout, done.stderr


def test_one_prompt_that_fails_leaves_the_others_alone(model: Path) -> None:
    code, out, err = generate(model, "the river", "glass " * 20, "the", "--max-new-tokens", "5", "--json")
    answers = json.loads(out)["answers"]
    assert [set(answer) for answer in answers] == [
        {"prompt", "text", "token_ids", "steer"},
        {"prompt", "error", "steer"},
        {"prompt", "text", "token_ids", "steer"},
    ]
    assert (code, err.count("\n")) == (2, 1)
    assert "do not fit the context of 64 tokens" in err
    alone = json.loads(generate(model, "the", "--max-new-tokens", "5", "--json")[1])
    assert alone == answers[2]


def test_gaps_are_marked_in_the_prompt(model: Path) -> None:
    code, out, err = generate(model, "the [...] and [...].", "no gap", "--gap", "3", "--json")
    filled, other = json.loads(out)["answers"]
    assert code == 2
    assert len(filled["token_ids"]) == 6
    assert filled["text"].startswith("the ")
    assert filled["text"].endswith(".")
    assert other["error"] in err
    assert "mark where the gap is" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "no prompt"),
        (("a", "--top-k", "5"), "top_k has no effect at temperature 0"),
        (("a", "--threshold", "0.5", "--factor", "2"), "threshold and factor both say"),
        (("a", "b", "--save", "trace"), "--save keeps the trace of one prompt"),
        (("a", "--stop", ""), "an empty text would end every answer at once"),
    ],
)
def test_what_cannot_be_done_is_one_line(model: Path, words: tuple[str, ...], message: str) -> None:
    code, out, err = generate(model, *words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err
