"""`LoadedModel`: many prompts of which some are wrong, stops, gaps between texts."""

import subprocess
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import vitrail
from tests.model.shapes import small_config
from vitrail.api import Generation, LoadedModel, Prompt
from vitrail.errors import ConfigError
from vitrail.generate import Sampling, Trace, generate
from vitrail.model import init_model, save_model
from vitrail.text import train_tokenizer

TEXT = "the economy of the island rests on fish. The island exports wool and salt. " * 40


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    """A model with random weights, and a tokenizer of 300 ids."""
    directory, tokenizer = tmp_path_factory.mktemp("model"), train_tokenizer([TEXT], 300)
    controls = tokenizer.controls
    specials = {
        "pad_id": controls.pad,
        "bos_id": controls.bos,
        "eos_id": controls.eos,
        "eoc_id": controls.eoc,
        "mask_id": controls.mask,
    }
    network = init_model(small_config(vocab_size=tokenizer.vocab_size, max_length=64, **specials), 0)
    with torch.no_grad():
        network.transformer.tok_emb.weight.mul_(20)
    save_model(network, directory)
    tokenizer.save(directory / "tokenizer")
    return vitrail.load(directory, device="cpu")


def test_wrong_prompts_of_any_kind_leave_the_others_alone(model: LoadedModel) -> None:
    wrong: list[tuple[Any, str]] = [
        ([10**30], "outside the vocabulary"),
        ("island " * 99, "do not fit the context"),
        ("\ud800", "not valid Unicode"),
        (Prompt("the", stop=("",)), "an empty text would end"),
        (Prompt("the", steer="no strength"), "has no strength"),
        (Prompt("the", sampling=Sampling(max_new_tokens=4, banned_ids=(10**6,))), "banned_ids: id 1000000 is outside"),
        (Prompt("the", sampling=Sampling(max_new_tokens=4, stop_ids=(-5,))), "stop_ids: id -5 is outside"),
        (Prompt("the", sampling=Sampling(max_new_tokens=4, banned_ids=tuple(range(300)))), "leave no id to sample"),
    ]
    answers = model.generate_many(["the island", *(prompt for prompt, _ in wrong)], max_new_tokens=4)
    assert isinstance(answers[0], Generation)
    assert answers[0].token_ids == model.generate("the island", max_new_tokens=4).token_ids
    for answer, (_, message) in zip(answers[1:], wrong, strict=True):
        assert message in str(answer)
        assert "\n" not in str(answer)


_WRONG_TYPES = """
import sys, torch, vitrail
from vitrail.errors import ConfigError, VitrailError

model = vitrail.load(sys.argv[1], device="cpu")
answers = model.generate_many([[9], None, 7, ["a"], [1.5], torch.ones(2, 2), torch.tensor([9])], max_new_tokens=3)
print(*("failed" if isinstance(answer, VitrailError) else "answered" for answer in answers))
for options in ({"stop": [5]}, {"stop": 5}):
    try:
        model.generate([9], **options)
    except ConfigError as error:
        print(error)
try:
    vitrail.load(sys.argv[1], device="cpu", attention="sdpaa")
except ConfigError as error:
    print(error)
"""


def test_values_of_a_wrong_type_are_refused_by_name(model: LoadedModel) -> None:
    """In a process of its own, without the checks of annotations that the tests run under."""
    done = subprocess.run(
        [sys.executable, "-c", _WRONG_TYPES, str(model.directory)], capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines() == [
        "answered failed failed failed failed failed answered",
        "stop: 5 is no text; ids that end the answer are stop_ids",
        "stop: 5 is no text; ids that end the answer are stop_ids",
        "attention 'sdpaa' is not one of sdpa, flex",
    ], done.stderr


def test_a_single_stop_is_one_text_and_not_its_letters(model: LoadedModel) -> None:
    options: dict[str, Any] = {"max_new_tokens": 30, "temperature": 1.0, "seed": 1}
    whole = model.generate("the island", **options).text
    stop = whole[len(whole) // 2 :][:3]
    wanted = whole[: whole.index(stop)]
    for stops in (stop, [stop], (stop, "never written")):
        assert model.generate("the island", **options, stop=stops).text == wanted


def test_a_stop_in_the_prompt_does_not_end_what_fills_its_gaps(model: LoadedModel) -> None:
    parts = ["fish. The ", " exports. "]
    ids = model.with_gaps(parts, 3)
    options: dict[str, Any] = {"max_new_tokens": 20, "temperature": 1.0, "seed": 1}
    whole = model.generate(ids, **options).text
    plain = model.generate(ids, **options, stop=["exports"])
    assert plain.text == whole
    assert whole.startswith(parts[0])
    answer = model.tokenizer.decode(plain.trace.row[len(ids) :])
    stop = answer[4:7]
    wanted = whole.removesuffix(answer) + answer[: answer.index(stop)]
    assert model.generate(ids, **options, stop=[stop]).text == wanted


@pytest.mark.parametrize("options", [{"stop": ["fish"]}, {"stop_ids": (9,)}], ids=str)
def test_a_stop_is_refused_where_only_gaps_are_filled(model: LoadedModel, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="max_new_tokens is 0"):
        model.infill(["the ", " exports"], 3, **options)


@pytest.mark.parametrize("options", [{"temperature": 1e300}, {"temperature": 101}], ids=str)
def test_a_temperature_that_has_no_meaning_is_refused(model: LoadedModel, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="'temperature'"):
        model.generate("the", max_new_tokens=3, **options)


def test_more_likely_ids_than_there_are_is_all_of_them(model: LoadedModel) -> None:
    options: dict[str, Any] = {"max_new_tokens": 9, "temperature": 1.0, "seed": 3}
    every = model.generate("the", **options, top_k=10**30)
    assert every.token_ids == model.generate("the", **options, top_k=300).token_ids


@pytest.mark.parametrize("wanted", [{"num_alternatives": 2}, {"num_concepts": 2}], ids=str)
def test_what_a_companion_wants_recorded_is_recorded_there_only(
    model: LoadedModel, wanted: dict[str, int], tmp_path: Path
) -> None:
    prompts: Sequence[list[int]] = [[9, 8], [7, 6]]
    samplings = [Sampling(max_new_tokens=5), Sampling(max_new_tokens=5, **wanted)]  # type: ignore[arg-type]
    together = generate(model.network, prompts, samplings)
    together[0].save(tmp_path / "trace")
    assert Trace.load(tmp_path / "trace") == together[0]
    assert all((commit.alternatives, commit.known, commit.discovered) == ((), (), ()) for commit in together[0].commits)
    assert all(commit.alternatives or commit.known for commit in together[1].commits)


def test_unknown_keys_give_one_warning_from_loading_to_the_answer(model: LoadedModel, tmp_path: Path) -> None:
    save_model(model.network, tmp_path)
    path = tmp_path / "config.json"
    path.write_text(path.read_text().replace("{", '{"zeta": 1,', 1))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert vitrail.load(tmp_path, device="cpu").generate([9], max_new_tokens=2).token_ids
    assert ["zeta" in str(warning.message) for warning in caught] == [True]
