"""Presets, strengths and the ReLU mask of the reference's steering."""

from pathlib import Path

import pytest
import torch

from tests.compat.checkpoints import checkpoint
from vitrail.compat import (
    Injector,
    ReferenceSteering,
    amplify,
    peak_alignment,
    relu_suppression,
    steering_direction,
    strength,
    suppress,
    top_tokens,
)
from vitrail.errors import ConceptNotFound
from vitrail.model import ConceptLM


@pytest.fixture
def model(tmp_path: Path) -> ConceptLM:
    return checkpoint(tmp_path, seed=1, n_layers=3)[0]


def test_amplify_turns_up_for_the_first_tokens() -> None:
    preset = amplify([3, 4])
    assert preset == ReferenceSteering(
        concept_ids=(3, 4), target=8.0, is_normalized=True, layer=8, schedule="hard_cutoff", cutoff_tokens=32
    )


def test_suppress_takes_the_focus_once_and_first() -> None:
    preset = suppress(4, [2, 4, 5])
    assert preset.concept_ids == (4, 2, 5)
    assert (preset.target, preset.is_normalized, preset.schedule, preset.layer) == (-7.0, False, "fixed", None)
    assert preset.relu_strengths == {4: 20.0}


@torch.no_grad()
def test_a_normalised_strength_raises_the_best_aligned_token_by_the_target(model: ConceptLM) -> None:
    steering = ReferenceSteering(concept_ids=(2, 5), target=6.0)
    vector = strength(model, steering) * steering_direction(model, [2, 5])
    assert float(model.lm_logits(vector).max()) == pytest.approx(6.0)
    assert top_tokens(model, 2, 1)[0][1] == pytest.approx(peak_alignment(model, steering_direction(model, [2])))


def test_a_direction_that_no_token_follows_has_the_smallest_peak(model: ConceptLM) -> None:
    assert peak_alignment(model, torch.zeros(24, dtype=torch.float64)) == 1e-6


def test_nothing_is_injected_without_concepts_or_target(model: ConceptLM) -> None:
    assert Injector.of(model, None) is None
    assert Injector.of(model, ReferenceSteering(target=3.0)) is None
    assert Injector.of(model, ReferenceSteering(concept_ids=(1,), target=0.0)) is None


@torch.no_grad()
def test_the_relu_mask_adds_positive_alignments_only(model: ConceptLM) -> None:
    rows = model.known_head.rows(torch.tensor([1, 2]))
    aligned = (rows @ model.transformer.lm_head.weight.T).clamp_min(0)
    torch.testing.assert_close(relu_suppression(model, {1: 2.0, 2: 3.0}), 2 * aligned[0] + 3 * aligned[1])
    assert not relu_suppression(model, {}).any()


def test_a_model_without_concepts_has_none_to_steer_by(tmp_path: Path) -> None:
    plain, _ = checkpoint(tmp_path / "plain", seed=1, interpretable=False)
    with pytest.raises(ConceptNotFound, match="no concepts"):
        steering_direction(plain, [0])
