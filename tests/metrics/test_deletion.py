from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vitrail.metrics.contribution import contribution, part_shares
from vitrail.metrics.deletion import (
    PARTS,
    deletion_nats,
    part_means,
    permuted_known,
    random_rotation,
)
from vitrail.metrics.states import MaskedStates, decompose, predicted_tokens, token_nats
from vitrail.model import ConceptLM

MakeModel = Callable[..., ConceptLM]


def states_of(model: ConceptLM, seed: int = 0, num: int = 90) -> MaskedStates:
    rng = torch.Generator().manual_seed(seed)
    hidden = torch.randn(num, model.config.width, generator=rng)
    targets = torch.randint(5, model.config.vocab_size, (num,), generator=rng)
    return MaskedStates(hidden, targets, torch.arange(num) // 9, 0.5)


def test_agrees_with_editing_one_position_at_a_time(make_model: MakeModel) -> None:
    """The mean deletion by hand: each part replaced in a forward of its own."""
    model = make_model()
    states, means = states_of(model), part_means(model, states_of(model, seed=1))
    found = deletion_nats(model, states, means)
    for part in PARTS:
        costs = []
        for row in range(len(states.targets)):
            out = model.decompose(states.hidden[None, row : row + 1])
            kept = sum(getattr(out, other)[0, 0] for other in PARTS if other != part)
            edited = model.lm_logits((kept + getattr(means, part))[None, None])[0, 0]
            target = states.targets[row]
            costs.append(out.logits[0, 0].log_softmax(-1)[target] - edited.log_softmax(-1)[target])
        assert found[part]["mean"] == pytest.approx(float(torch.stack(costs).mean()), rel=1e-4)
        low, high = found[part]["ci95"]["mean"]
        assert low <= found[part]["mean"] <= high


def test_a_part_that_is_not_there_costs_nothing(make_model: MakeModel) -> None:
    model = make_model()
    model.get_parameter("known_head.concept_embedding.weight").zero_()
    states = states_of(model)
    found = deletion_nats(model, states, part_means(model, states))
    for name in ("known", "shuffled", "random"):
        assert [found[name][how] for how in ("resample", "mean", "zero")] == [0, 0, 0]
    assert found["residual"]["zero"] != 0


def test_a_constant_part_costs_nothing_by_mean_and_resampling(make_model: MakeModel) -> None:
    """What is the same everywhere is no content: only zeroing it may cost."""
    model = make_model(top_k_known=None, top_k_known_features=None)
    model.get_parameter("known_head.concept_predictor.weight").zero_()
    states = states_of(model)
    found = deletion_nats(model, states, part_means(model, states))["known"]
    assert abs(found["mean"]) < 1e-5
    assert abs(found["resample"]) < 1e-5
    assert abs(found["zero"]) > 1e-3


@settings(max_examples=10, deadline=None)
@given(st.integers(2, 13), st.integers(0, 1000))
def test_rotations_keep_every_norm(width: int, seed: int) -> None:
    rotation = random_rotation(width, torch.Generator().manual_seed(seed))
    assert torch.allclose(rotation @ rotation.T, torch.eye(width), atol=1e-5)


@pytest.mark.parametrize("kept", [5, None])
def test_the_identity_shuffles_nothing(make_model: MakeModel, kept: int | None) -> None:
    model = make_model(top_k_known_features=kept)
    states = states_of(model)
    known = decompose(model, states.hidden).known[0]
    assert torch.allclose(permuted_known(model, states.hidden, torch.arange(7)), known, atol=1e-5)
    moved = permuted_known(model, states.hidden, torch.arange(7).roll(1))
    assert (moved - known).norm() > 0.1 * known.norm()


def test_controls_are_those_of_the_known_part(make_model: MakeModel) -> None:
    """Shuffling costs something on states that the head reads, and everything is deterministic."""
    model = make_model()
    states, means = states_of(model), part_means(model, states_of(model, 1))
    found = deletion_nats(model, states, means, seed=3)
    assert found == deletion_nats(model, states, means, seed=3)
    assert all(found[name]["zero"] != 0 for name in ("shuffled", "random"))
    assert (found["n"], found["num_sequences"], found["noise"]) == (90, 10, 0.5)


def test_shares_sum_to_one_and_follow_the_formula(make_model: MakeModel) -> None:
    model = make_model()
    states, means = states_of(model), part_means(model, states_of(model, 1))
    found = contribution(model, states, means)
    assert found["known"] + found["discovered"] + found["residual"] == pytest.approx(1, abs=1e-6)
    out = model.decompose(states.hidden[None])
    logits = out.logits[0].clone()
    logits[:, model.config.mask_id] = -torch.inf
    predicted = logits.argmax(-1)
    assert torch.equal(predicted_tokens(model, out.composed[0]), predicted)
    pushes = [
        (getattr(out, part)[0] * model.get_parameter("transformer.lm_head.weight")[predicted]).sum(-1).abs()
        for part in PARTS
    ]
    assert found["known"] == pytest.approx(float((pushes[0] / sum(pushes)).mean()), rel=1e-4)
    low, high = found["ci95"]["known_context"]
    assert low <= found["known_context"] <= high
    assert found["context"]["known"] == pytest.approx(found["known_context"], rel=1e-6)


def test_parts_that_push_nothing_have_no_share() -> None:
    parts = [torch.zeros(3, 5), torch.ones(3, 5), torch.zeros(3, 5)]
    shares = part_shares(parts, torch.tensor([0, 1, 0]), torch.ones(2, 5))
    assert torch.equal(shares, torch.tensor([[0.0, 1.0, 0.0]]).expand(3, 3))


def test_slabs_of_logits_change_nothing(make_model: MakeModel, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model()
    states = states_of(model)
    whole = token_nats(model, states.hidden, states.targets)
    monkeypatch.setattr("vitrail.metrics.states._LOGITS_AT_ONCE", 7 * 41)
    assert torch.allclose(token_nats(model, states.hidden, states.targets), whole, atol=1e-6)
