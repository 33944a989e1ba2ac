"""Recorded concept attributions, token by token and chunk by chunk."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.compat.golden import arrays, assert_close, records
from vitrail.compat import (
    ChunkAttribution,
    ConceptAttribution,
    attribute_concepts,
    chunk_attributions,
    read_ids,
    read_options,
    read_prompt,
)
from vitrail.model import ConceptLM

NAMES = ["concept_attribution", "concept_attribution_eot"]


def _attribution(directory: Path, model: ConceptLM, case: str) -> ConceptAttribution:
    run = next(run for run in records(directory / "generation.json") if run["name"] == case)
    return attribute_concepts(model, read_prompt(run), read_options(run), ids=read_ids(run, model.config))


@pytest.mark.parametrize("name", NAMES)
def test_concepts_of_tokens(directory: Path, model: ConceptLM, name: str) -> None:
    wanted, record = arrays(directory / f"{name}.npz"), records(directory / f"{name}.json")
    got = _attribution(directory, model, record["case"])
    is_committed = wanted["committed"].bool()
    assert torch.equal(got.is_committed, is_committed)
    assert torch.equal(got.generation.rows[0], wanted["tokens"])
    assert got.generation.prompt_length == int(wanted["prompt_len"])
    assert torch.equal(got.steps, wanted["denoising_step"])
    parts: dict[str, Tensor] = {
        "target_token_ids": got.target_ids,
        "target_logits": got.target_logits,
        "known_indices": got.known.ids,
        "known_weights": got.known.weights,
        "known_contributions": got.known.contributions,
        "unk_indices": got.discovered.ids,
        "unk_weights": got.discovered.weights,
        "unk_contributions": got.discovered.contributions,
        "epsilon_contribution": got.rest,
    }
    for part, array in parts.items():
        assert_close(
            array[is_committed], wanted[part][is_committed], part, 0 if "i" in part.split("_")[-1][:2] else 1e-4
        )
    assert not got.rest[~is_committed].any(), "a position without a commit has an attribution"


@pytest.mark.parametrize("name", NAMES)
def test_concepts_of_chunks(directory: Path, model: ConceptLM, name: str) -> None:
    record = records(directory / f"{name}.json")
    attribution = _attribution(directory, model, record["case"])
    got = chunk_attributions(attribution, record["endofchunk_token_id"], record["eot_id"])
    for chunk, wanted in zip(got, record["chunks"], strict=True):
        _assert_same_chunk(chunk, wanted)
    assert any(wanted["entries"] for wanted in record["chunks"])


def _assert_same_chunk(got: ChunkAttribution, wanted: dict[str, Any]) -> None:
    assert (got.start, got.stop) == (wanted["start"], wanted["end"])
    if wanted["eps_pct"] is None:
        assert got.rest_percent is None
    else:
        assert got.rest_percent == pytest.approx(wanted["eps_pct"], abs=1e-2)
    scores = {(kind, concept): score for kind, concept, score in got.entries}
    assert scores == pytest.approx({(kind, concept): score for kind, concept, score in wanted["entries"]}, abs=1e-4)
    sizes = [abs(score) for _kind, _concept, score in got.entries]
    assert sizes == sorted(sizes, reverse=True)
