"""Capability probes: questions from text and files, scored by likelihood; bad files are one line."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from vitrail.errors import ConfigError
from vitrail.model import ConceptLM
from vitrail.packed import PackedCorpus
from vitrail.train.probes import Question, read_probe, right_answers, text_questions

Model = Callable[..., ConceptLM]


def _write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


def _line(**changes: object) -> str:
    return json.dumps({"query": "The bread is in the", "choices": ["oven", "harbour"], "gold": 0, "id": 7} | changes)


@pytest.mark.parametrize("is_zipped", [False, True])
def test_questions_of_a_file(is_zipped: bool, packed_dir: Path, tiny_model: Model, tmp_path: Path) -> None:
    tokenizer = PackedCorpus.open(packed_dir).tokenizer()
    path = _write(tmp_path / "a.jsonl", _line(), "", _line(gold=1), _line())
    if is_zipped:
        zipped = tmp_path / "a.jsonl.gz"
        zipped.write_bytes(gzip.compress(path.read_bytes()))
        path = zipped
    questions = read_probe(path, tokenizer, tiny_model(vocab_size=tokenizer.vocab_size).config, 2)
    assert [question.gold for question in questions] == [0, 1]
    assert questions[0].context[0] == tiny_model().config.bos_id
    assert tokenizer.decode(questions[0].choices[1]) == " harbour"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("not json", "line 2: line"),
        ('{"query": "a", "gold": 0}', "choices"),
        (_line(gold=2), "gold 2 is none of 2 choices"),
        (_line(choices=["oven", " "]), "a choice is empty"),
        (_line(choices=["oven " * 80, "x"]), "too long for 64 tokens"),
    ],
)
def test_a_line_that_is_no_question_is_named(
    line: str, message: str, packed_dir: Path, tiny_model: Model, tmp_path: Path
) -> None:
    tokenizer = PackedCorpus.open(packed_dir).tokenizer()
    path = _write(tmp_path / "a.jsonl", _line(), line)
    with pytest.raises(ConfigError, match=message) as caught:
        read_probe(path, tokenizer, tiny_model(vocab_size=tokenizer.vocab_size).config, 10)
    assert str(path) in str(caught.value)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_probe(tmp_path / "missing.jsonl", tokenizer, tiny_model().config, 10)


def test_the_text_is_asked_with_the_true_half_in_every_place(tiny_packed: PackedCorpus) -> None:
    questions = text_questions(tiny_packed, 5)
    assert [question.gold for question in questions] == [0, 1, 2, 3, 0]
    for question in questions:
        assert len(question.choices) == 4
        assert len(set(map(len, question.choices))) == 1
    assert text_questions(tiny_packed, 0) == []


@pytest.mark.parametrize("backbone", ["cdlm", "ar"])
def test_the_choice_that_the_model_holds_likely_wins(backbone: str, tiny_model: Model) -> None:
    """A twin by hand: mean log-probability of each choice alone, in a batch of its own."""
    model = tiny_model(backbone=backbone)
    rng = torch.Generator().manual_seed(0)
    for _ in range(10):
        ids = torch.randint(5, 41, (16,), generator=rng).tolist()
        choices = (tuple(ids[5:8]), tuple(ids[8:13]), tuple(ids[13:]))
        scores = []
        for choice in choices:
            row = torch.tensor([[*ids[:5], *choice]])
            shown = row if backbone == "ar" else row.clone().index_fill(1, torch.arange(5, row.shape[1]), 4)
            logs = model(shown).logits[0].detach().log_softmax(-1)
            offset = 1 if backbone == "ar" else 0
            scores.append(sum(float(logs[5 + i - offset, t]) for i, t in enumerate(choice)) / len(choice))
        best = max(range(3), key=scores.__getitem__)
        assert right_answers(model, [Question(tuple(ids[:5]), choices, gold) for gold in range(3)]) == [
            gold == best for gold in range(3)
        ]


def test_a_torn_or_damaged_gz_is_one_line(packed_dir: Path, tiny_model: Model, tmp_path: Path) -> None:
    tokenizer = PackedCorpus.open(packed_dir).tokenizer()
    config = tiny_model(vocab_size=tokenizer.vocab_size).config
    whole = gzip.compress("".join(f"{_line(id=number * 7919 % 9973)}\n" for number in range(400)).encode())
    path = tmp_path / "a.jsonl.gz"
    for content in (whole[: len(whole) // 2], whole[:400] + bytes(20) + whole[420:]):
        path.write_bytes(content)
        with pytest.raises(ConfigError, match=r"a\.jsonl\.gz: cannot be read"):
            read_probe(path, tokenizer, config, 1_000)


def test_a_fault_is_told_by_its_number_in_the_file(packed_dir: Path, tiny_model: Model, tmp_path: Path) -> None:
    tokenizer = PackedCorpus.open(packed_dir).tokenizer()
    path = _write(tmp_path / "a.jsonl", _line(), "", "", "not json")
    with pytest.raises(ConfigError, match="line 4: line"):
        read_probe(path, tokenizer, tiny_model(vocab_size=tokenizer.vocab_size).config, 10)
