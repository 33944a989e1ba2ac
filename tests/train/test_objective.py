"""Who receives which gradient, and that composition does what its equations say (design §3)."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from vitrail.model import ConceptLM
from vitrail.packed import PackedBatch
from vitrail.train.loop import gradients
from vitrail.train.masking import Draws
from vitrail.train.microbatch import cut, present_tokens, row_slices
from vitrail.train.objective import (
    ComposeSettings,
    LossSettings,
    Plan,
    compose,
    counts,
    draw,
    forward,
    label_embedding,
    plan_at,
    terms,
)
from vitrail.train.schedules import value_at
from vitrail.train.settings import TrainSettings

Model = Callable[..., ConceptLM]
Batch = Callable[..., PackedBatch]
CONFIGS = sorted((Path(__file__).parents[2] / "configs").glob("train*.yaml"))
GROUPS = {
    "backbone": ("transformer.tok_emb", "transformer.blocks", "transformer.ln_f"),
    "known_predictor": ("known_head.concept_predictor",),
    "K": ("known_head.concept_embedding",),
    "discovered_predictor": ("unknown_head.predictor",),
    "AB": ("unknown_head.embedding",),
    "lm_head": ("transformer.lm_head",),
}
TABLE = {
    "language": {"backbone", "known_predictor", "K", "lm_head"},
    "concept": {"backbone", "known_predictor"},
    "token_concept": {"backbone", "known_predictor"},
    "reconstruction": {"discovered_predictor", "AB"},
    "independence": {"discovered_predictor", "AB"},
}
ALL_ON = LossSettings(token_concept=0.1, independence_of="discovered_and_residual", reconstruction_target="labels")


def _present(batch: PackedBatch) -> Tensor:
    return present_tokens(batch, 0)


def _draws(batch: PackedBatch, settings: TrainSettings, share: float, step: int = 0) -> Draws:
    return draw(settings.noise, settings.compose, _present(batch), 4, share, settings.seed, step)


def _reached(
    model: ConceptLM, batch: PackedBatch, name: str, plan: Plan, loss: LossSettings, kept: bool | None = None
) -> set[str]:
    """Groups with a gradient from one term; every parameter of a reached group must have one."""
    draws = _draws(batch, TrainSettings(), 0.6)
    if kept is not None:
        everywhere = torch.full_like(draws.masked, kept)
        draws = Draws(draws.noise, draws.masked, everywhere, torch.ones_like(everywhere))
    model.zero_grad(set_to_none=True)
    states = forward(model, batch, draws, plan, loss)
    terms(model, batch, draws, _present(batch), states, loss)[name].total.backward()  # type: ignore[no-untyped-call]
    size = {key: float(p.grad.norm()) if p.grad is not None else 0.0 for key, p in model.named_parameters()}
    return {group for group, starts in GROUPS.items() if any(v > 1e-9 for k, v in size.items() if k.startswith(starts))}


@pytest.mark.parametrize("name", list(TABLE))
def test_gradient_table(name: str, tiny_model: Model, tiny_batch: Batch) -> None:
    model = tiny_model(tie_embeddings=False)
    plan = Plan(known_forcing=0.4, discovered_forcing=0.3, top_k_known=3, top_k_discovered=6)
    assert _reached(model, tiny_batch(), name, plan, ALL_ON) == TABLE[name]


def test_predicted_reconstruction_also_trains_the_discovered_head_alone(tiny_model: Model, tiny_batch: Batch) -> None:
    loss = LossSettings(reconstruction_target="predicted")
    plan = Plan(0.0, 0.0, 3, 6)
    reached = _reached(tiny_model(tie_embeddings=False), tiny_batch(), "reconstruction", plan, loss)
    assert reached == {"discovered_predictor", "AB"}


def test_the_flag_keeps_the_language_gradient_from_the_activations(tiny_model: Model, tiny_batch: Batch) -> None:
    model, plan = tiny_model(tie_embeddings=False), Plan(0.0, 0.0, 3, 6)
    loss = LossSettings(lm_grad_to_activations=False)
    assert _reached(model, tiny_batch(), "language", plan, loss) == {"backbone", "K", "lm_head"}


def test_the_backbone_learns_language_through_activations_only_where_that_is_asked_for(
    tiny_model: Model, tiny_batch: Batch
) -> None:
    model, plan = tiny_model(tie_embeddings=False), Plan(0.0, 0.0, 3, 6)
    for through in (True, False):
        loss = LossSettings(lm_grad_through_activations=through)
        reached = _reached(model, tiny_batch(), "language", plan, loss, kept=False)
        assert reached == {"known_predictor", "K", "lm_head"} | ({"backbone"} if through else set())
        assert "backbone" in _reached(model, tiny_batch(), "language", plan, loss, kept=True)


def test_detached_activations_give_the_same_features(tiny_model: Model, tiny_batch: Batch) -> None:
    model, batch, plan = tiny_model(), tiny_batch(), Plan(0.0, 0.0, 3, 6)
    draws = _draws(batch, TrainSettings(), 0.6)
    with_grad, without = (
        forward(model, batch, draws, plan, LossSettings(lm_grad_to_activations=flag)).logits_n for flag in (True, False)
    )
    torch.testing.assert_close(with_grad, without)


def test_known_embeddings_learn_language_only_where_the_residual_is_dropped(
    tiny_model: Model, tiny_batch: Batch
) -> None:
    model, batch = tiny_model(tie_embeddings=False), tiny_batch()
    plan, forced = Plan(0.3, 0.3, 3, 6), Plan(1.0, 1.0, 3, 6)
    assert "K" not in _reached(model, batch, "language", plan, LossSettings(), kept=True)
    assert "K" in _reached(model, batch, "language", plan, LossSettings(), kept=False)
    assert "K" not in _reached(model, batch, "language", forced, LossSettings(), kept=False), (
        "with both forced entirely, k + u = h again"
    )


@pytest.mark.parametrize("path", [None, *CONFIGS], ids=lambda path: path.stem if path else "defaults")
@pytest.mark.parametrize("share", [0.0, 0.5, 0.999])
def test_known_embeddings_get_a_language_gradient_in_every_shipped_schedule(
    path: Path | None, share: float, tiny_model: Model, tiny_batch: Batch
) -> None:
    settings, model, batch = TrainSettings.load(path), tiny_model(), tiny_batch(rows=8)
    draws = _draws(batch, settings, share)
    states = forward(model, batch, draws, plan_at(settings.compose, model, share), settings.loss)
    found = terms(model, batch, draws, _present(batch), states, settings.loss)["language"].total
    table = dict(model.named_parameters())["known_head.concept_embedding.weight"]
    (grad,) = torch.autograd.grad(found, table)
    assert float(grad.norm()) > 1e-6, "K would never learn what its concepts say"


def test_composition_follows_its_equations() -> None:
    rng = torch.Generator().manual_seed(0)
    h, k, u, gt = (torch.randn((3, 5), generator=rng, dtype=torch.float64) for _ in range(4))
    plan = Plan(known_forcing=0.7, discovered_forcing=0.2, top_k_known=None, top_k_discovered=None)
    kept, with_u = torch.tensor([True, False, False]), torch.tensor([True, True, False])
    got = compose(h, k, u, gt, kept, with_u, plan)
    mixed_k, mixed_u = 0.7 * gt + 0.3 * k, 0.2 * (h - gt) + 0.8 * u
    torch.testing.assert_close(got[0], h[0])
    torch.testing.assert_close(got[1], mixed_k[1] + mixed_u[1])
    torch.testing.assert_close(got[2], mixed_k[2])


def test_label_embedding_is_the_sum_of_rows_of_the_chunk(tiny_model: Model, tiny_batch: Batch) -> None:
    model, batch = tiny_model(), tiny_batch()
    got, table = label_embedding(model, batch), model.known_head.embedding(slice(0, 7))
    for row, pos in ((0, 0), (0, 1), (2, 5), (4, 12)):
        j = int(batch.chunk[row, pos])
        own = [int(c) for i, c in zip(batch.label_chunk, batch.label_concept, strict=True) if int(i) == j >= 0]
        torch.testing.assert_close(got[row, pos], table[own].sum(0) if own else torch.zeros_like(got[row, pos]))


def test_evaluation_ends_without_teacher_forcing() -> None:
    for path in (None, *CONFIGS):
        compose_settings = TrainSettings.load(path).compose
        assert value_at(compose_settings.known_forcing, 1.0) == 0.0
        assert value_at(compose_settings.discovered_forcing, 1.0) == 0.0


@pytest.mark.parametrize("slab", [1, 3])
def test_the_slab_does_not_change_loss_or_gradient(slab: int, tiny_model: Model, tiny_batch: Batch) -> None:
    results = []
    for size in (4096, slab):
        model = tiny_model(slab=size)
        settings = TrainSettings(batch_size=5, precision="fp32", loss=ALL_ON)
        values = gradients(model, tiny_batch(rows=5), settings, 0.3, 11)
        results.append((values, {name: p.grad for name, p in model.named_parameters()}))
    torch.testing.assert_close(results[0], results[1], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("micro", [1, 2, 3, None])
def test_micro_batches_do_not_change_loss_or_gradient(micro: int | None, tiny_model: Model, tiny_batch: Batch) -> None:
    batch = tiny_batch(rows=5)
    results = []
    for size in (None, micro):
        model = tiny_model()
        settings = TrainSettings(batch_size=5, micro_batch=size, precision="fp32", loss=ALL_ON)
        values = gradients(model, batch, settings, 0.3, 11)
        results.append((values, {name: p.grad for name, p in model.named_parameters()}))
    torch.testing.assert_close(results[0], results[1], rtol=1e-9, atol=1e-11)


def test_counts_add_up_over_micro_batches(tiny_batch: Batch) -> None:
    batch, settings = tiny_batch(rows=5), TrainSettings()
    draws, present = _draws(batch, settings, 0.2), _present(batch)
    whole = counts(batch, draws, present, settings.loss)
    parts = [counts(cut(batch, r), draws.rows(r), present[r], settings.loss) for r in row_slices(5, 2)]
    assert {name: sum(part[name] for part in parts) for name in whole} == whole


def test_cut_keeps_labels_with_their_text(tiny_batch: Batch) -> None:
    batch = tiny_batch(rows=5)
    part = cut(batch, slice(2, 4))
    whole_pairs = {
        (int(batch.rows[j]), int(c))
        for j, c in zip(batch.label_chunk, batch.label_concept, strict=True)
        if int(batch.rows[j]) in part.rows.tolist()
    }
    assert whole_pairs == {
        (int(part.rows[j]), int(c)) for j, c in zip(part.label_chunk, part.label_concept, strict=True)
    }
    length = batch.tokens.shape[1]
    spans = [(int(p) - 2 * length, int(c)) for p, c in zip(batch.span_pos, batch.span_concept, strict=True)]
    assert list(zip(part.span_pos.tolist(), part.span_concept.tolist(), strict=True)) == [
        span for span in spans if 0 <= span[0] < 2 * length
    ]
    assert set(torch.unique(part.chunk).tolist()) - {-1} == set(range(part.num_chunks))


def test_top_k_anneals(tiny_model: Model) -> None:
    model = tiny_model()
    settings = ComposeSettings(top_k_known=((0.0, 7), (0.5, 3)))
    assert [plan_at(settings, model, share).top_k_known for share in (0.0, 0.25, 0.9)] == [7, 5, 3]
    assert plan_at(ComposeSettings(), model, 0.5).top_k_known == 3
