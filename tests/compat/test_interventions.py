"""What follows from the reference's rules for interventions."""

from pathlib import Path

import pytest
import torch

from tests.compat.checkpoints import checkpoint
from vitrail.compat import Intervention, dense_logits, edited, embed, reference_forward
from vitrail.compat.interventions import rule_of
from vitrail.errors import ConceptNotFound, ConfigError
from vitrail.model import DenseHead, Selection

IDS = torch.tensor([[1, 2, 3, 33, 33, 4]])
EDIT = {2: 1.5}


def _max_change(path: Path, head: str, **flags: bool) -> float:
    model, _ = checkpoint(path, seed=1, **flags)
    change = Intervention.of(EDIT, IDS)
    plain = reference_forward(model, IDS)
    moved = reference_forward(
        model, IDS, known=change if head == "known" else None, discovered=change if head == "discovered" else None
    )
    return float((plain.logits - moved.logits).abs().max())


def test_discovered_interventions_do_nothing_under_the_correction(tmp_path: Path) -> None:
    assert _max_change(tmp_path, "discovered") < 1e-12
    assert _max_change(tmp_path, "discovered", use_epsilon_correction=False) > 0.1


def test_known_interventions_do_nothing_without_a_discovered_head(tmp_path: Path) -> None:
    assert _max_change(tmp_path, "known", use_unknown=False) < 1e-12
    assert _max_change(tmp_path, "known") > 0.1


def test_a_known_intervention_drops_the_correction_even_where_it_sets_nothing_new(tmp_path: Path) -> None:
    model, _ = checkpoint(tmp_path, seed=1)
    nowhere = Intervention.of(EDIT, IDS, torch.zeros(1, 6, dtype=torch.bool))
    got = reference_forward(model, IDS, known=nowhere)
    assert got.correction is None
    torch.testing.assert_close(got.composed, got.known + got.discovered)


def test_changes_apply_at_the_positions_given(tmp_path: Path) -> None:
    model, _ = checkpoint(tmp_path, seed=1, topk_known=5)
    positions = torch.tensor([[False, True, False, False, True, False]])
    plain = reference_forward(model, IDS)
    moved = reference_forward(model, IDS, known=Intervention.of(EDIT, IDS, positions))
    is_moved = ((moved.known - plain.known).abs().amax(-1) > 1e-9)[0]
    assert torch.equal(is_moved, positions[0])
    assert Intervention.of({}, IDS) is None


def test_a_concept_that_the_head_does_not_have_is_named(tmp_path: Path) -> None:
    model, _ = checkpoint(tmp_path, seed=1)
    with pytest.raises(ConceptNotFound, match="no concept 13; it has 13"):
        reference_forward(model, IDS, known=Intervention.of({13: 1.0}, IDS))
    with pytest.raises(ConceptNotFound, match="no concept -2"):
        reference_forward(model, IDS, known=Intervention.of({-2: 1.0}, IDS))


def test_heads_of_more_than_50000_concepts_are_never_dense() -> None:
    for count, rule in ((50_000, "dense"), (50_001, "sparse")):
        with torch.device("meta"):
            head = DenseHead(count, 2, Selection(3, 3, by_logit=False), slab=64, pad=1, use_attention=False)
        assert rule_of(head) == rule
    with pytest.raises(ConfigError, match="50001 concepts are refused; the limit is 50000"):
        dense_logits(head, torch.zeros(1, 2))


@torch.no_grad()
def test_the_sparse_rule_takes_away_weights_that_were_not_there(tmp_path: Path) -> None:
    """Setting an unselected concept to σ(its logit): the sparse rule changes nothing, the dense one adds it."""
    model, _ = checkpoint(tmp_path, seed=1, topk_known=3, topk_known_features=3)
    hidden, head = model.hidden(IDS), model.known_head
    plain = head(hidden)
    left_out = dense_logits(head, hidden)[0, 0].argmin()
    current = float(dense_logits(head, hidden)[0, 0, left_out].sigmoid())
    change = Intervention.of({int(left_out): current}, IDS[:, :1])
    assert change is not None
    sparse, dense = (edited(head, hidden[:, :1], change, rule=rule).features for rule in ("sparse", "dense"))
    torch.testing.assert_close(sparse, plain.features[:, :1])
    added = current * head.rows(left_out)
    torch.testing.assert_close(dense[0, 0], plain.features[0, 0] + added, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("flags", [{}, {"use_unknown": False}])
def test_embeddings_are_parts_of_the_forward(tmp_path: Path, flags: dict[str, bool]) -> None:
    model, _ = checkpoint(tmp_path, seed=1, use_epsilon_correction=False, **flags)
    out = reference_forward(model, IDS)
    states = {"hidden": out.hidden, "composed": out.composed, "known": out.known, "discovered": out.discovered_for_lm}
    for part, wanted in states.items():
        assert torch.equal(embed(model, IDS, part, "none"), wanted), part  # type: ignore[arg-type]
        torch.testing.assert_close(embed(model, IDS, part), wanted.mean(1))  # type: ignore[arg-type]


def test_a_plain_backbone_embeds_hidden_states_only(tmp_path: Path) -> None:
    model, _ = checkpoint(tmp_path, seed=1, interpretable=False)
    assert embed(model, IDS).shape == (1, 24)
    with pytest.raises(ConfigError, match="no 'known' embedding"):
        embed(model, IDS, "known")
    with pytest.raises(ConfigError, match="empty text"):
        embed(model, IDS[:, :0])
