"""Recorded generations and sampling, token for token."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.compat.golden import TOLERANCE, arrays, assert_close, records
from vitrail.compat import (
    Commit,
    ReferenceOptions,
    choose_token,
    generate_like_reference,
    nucleus,
    read_ids,
    read_options,
    read_prompt,
    read_steering,
    reference_generation,
    token_probs,
)
from vitrail.model import ConceptLM, DecomposedOutput

THROUGH_THE_FRONT_DOOR = [
    "greedy_no_penalty",
    "steer_suppress_injection_relu",
    "cfg_1.0_with_injection",
    "eot_with_batch_commit",
]


@pytest.mark.parametrize("name", THROUGH_THE_FRONT_DOOR)
def test_generate_like_reference_gives_the_recorded_row(directory: Path, model: ConceptLM, name: str) -> None:
    run = next(run for run in records(directory / "generation.json") if run["name"] == name)
    assert generate_like_reference(model, run) == run["tokens"]


def test_generations_token_for_token_and_commit_for_commit(directory: Path, model: ConceptLM) -> None:
    for run in records(directory / "generation.json"):
        seen: list[tuple[Commit, DecomposedOutput]] = []
        got = reference_generation(
            model,
            read_prompt(run),
            read_options(run),
            steering=read_steering(run),
            ids=read_ids(run, model.config),
            on_commit=lambda commit, output, seen=seen: seen.append((commit, output)),  # type: ignore[misc]
        )
        assert got.tokens == run["tokens"], run["name"]
        assert got.prompt_length == run["prompt_tokens"], run["name"]
        assert list(got.text_ids) == run["text_tokens"], run["name"]
        assert len(got.text_ids) == run["generated_tokens"], run["name"]
        if run["commits"] is None:
            assert seen == [], f"{run['name']}: the hook was called although guidance is on"
            continue
        assert [commit for commit, _ in seen] == list(got.commits), run["name"]
        for (commit, output), wanted in zip(seen, run["commits"], strict=True):
            _assert_same_commit(commit, wanted, run["name"])
            raw = output.logits[0, list(commit.positions), list(commit.tokens)].tolist()
            assert raw == pytest.approx(commit.target_logits), run["name"]


def _assert_same_commit(commit: Commit, wanted: dict[str, Any], name: str) -> None:
    assert commit.step == wanted["step"], name
    assert list(commit.positions) == wanted["positions"], name
    assert list(commit.tokens) == wanted["tokens"], name
    assert commit.target_logits == pytest.approx(wanted["target_logits"], abs=TOLERANCE), name


def test_sampling_rule(directory: Path) -> None:
    if not (directory / "sampling.json").exists():
        pytest.skip(f"{directory.name} has no recorded sampling")
    wanted = arrays(directory / "sampling.npz")
    num_arrays = 0
    for number, case in enumerate(records(directory / "sampling.json")):
        options = ReferenceOptions.parse({**case["config"], "stop_tokens": ()})
        for row in case["rows"]:
            logits, name = wanted["logits"][row["row"]], f"c{number}_r{row['row']}"
            probs = token_probs(logits, options)
            if probs is not None:
                assert_close(probs, wanted[f"{name}_probs"], name)
                assert_close(nucleus(probs, options.top_p), wanted[f"{name}_nucleus"], name)
                num_arrays += 2
            else:
                assert f"{name}_probs" not in wanted, f"{name}: recorded as sampled, chosen as the most likely"
            generator = torch.Generator().manual_seed(123)
            assert choose_token(logits, options, generator) == row["token_with_seed_123"], name
    assert num_arrays == len(wanted) - 1
