"""Who receives which gradient, and that forward and composition do what their equations say (design §3)."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from vitrail.errors import ConfigError
from vitrail.model import ConceptLM
from vitrail.packed import PackedBatch
from vitrail.settings import read_yaml
from vitrail.train.masking import BackboneName, Draws, NoiseSettings
from vitrail.train.microbatch import present_tokens
from vitrail.train.objective import (
    ComposeSettings,
    LossSettings,
    Plan,
    check_objective,
    compose,
    draw,
    forward,
    inputs,
    label_embedding,
    plan_at,
    targets,
)
from vitrail.train.schedules import value_at
from vitrail.train.settings import TrainSettings
from vitrail.train.shape import ModelSettings
from vitrail.train.terms import terms

Model = Callable[..., ConceptLM]
Batch = Callable[..., PackedBatch]
BACKBONES: tuple[BackboneName, ...] = ("cdlm", "ar")
CONFIGS = Path(__file__).parents[2] / "configs"
GROUPS = {
    "backbone": ("transformer.tok_emb", "transformer.blocks", "transformer.ln_f"),
    "known_predictor": ("known_head.concept_predictor",),
    "K": ("known_head.concept_embedding",),
    "discovered_predictor": ("unknown_head.predictor", "unknown_head.concept_predictor"),
    "AB": ("unknown_head.embedding", "unknown_head.concept_embedding"),
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
EVALUATED = Plan(0.0, 0.0, 3, 6)


def _trains(path: Path) -> bool:
    return bool({"total_tokens", "noise", "loss", "compose", "optim", "model", "size", "flops"} & set(read_yaml(path)))


SHIPPED = [None, *(path for path in sorted(CONFIGS.rglob("*.yaml")) if _trains(path))]


def _draws(
    batch: PackedBatch, backbone: BackboneName = "cdlm", share: float = 0.6, settings: TrainSettings | None = None
) -> Draws:
    noise = settings.noise if settings else NoiseSettings()
    chosen = settings.compose if settings else ComposeSettings()
    rows, length = batch.tokens.shape
    return draw(noise, chosen, (rows, length), 4, share, 0, 0, backbone).over(batch.loss_mask)


def _everywhere(draws: Draws, residual: bool, discovered: bool = True, known: bool = True) -> Draws:
    """The same predictions, with the parts kept or dropped at every position."""
    full = torch.ones_like(draws.predicted)
    return Draws(draws.noise, draws.predicted, full & residual, full & discovered, full[:, 0] & known)


def _term(model: ConceptLM, batch: PackedBatch, draws: Draws, name: str, plan: Plan, loss: LossSettings) -> Tensor:
    states = forward(model, batch, draws, plan, loss)
    return terms(model, batch, draws, present_tokens(batch, 0), states, loss)[name].total


def _reached(
    model: ConceptLM,
    batch: PackedBatch,
    name: str,
    plan: Plan = EVALUATED,
    loss: LossSettings = ALL_ON,
    kept: bool | None = None,
) -> set[str]:
    """Groups of parameters with a gradient from one term, `kept`: the residual at every position, or at none."""
    draws = _draws(batch, model.config.backbone)
    draws = draws if kept is None else _everywhere(draws, kept)
    model.zero_grad(set_to_none=True)
    _term(model, batch, draws, name, plan, loss).backward()  # type: ignore[no-untyped-call]
    size = {key: float(p.grad.norm()) if p.grad is not None else 0.0 for key, p in model.named_parameters()}
    return {group for group, starts in GROUPS.items() if any(v > 1e-9 for k, v in size.items() if k.startswith(starts))}


@pytest.mark.parametrize("backbone", BACKBONES)
@pytest.mark.parametrize("factorize", [True, False])
@pytest.mark.parametrize("name", list(TABLE))
def test_gradient_table(
    name: str, factorize: bool, backbone: BackboneName, tiny_model: Model, tiny_batch: Batch
) -> None:
    model = tiny_model(tie_embeddings=False, backbone=backbone, factorize_discovered=factorize)
    plan = Plan(known_forcing=0.4, discovered_forcing=0.3, top_k_known=3, top_k_discovered=6)
    assert _reached(model, tiny_batch(), name, plan) == TABLE[name]


@pytest.mark.parametrize("backbone", BACKBONES)
@pytest.mark.parametrize("target", ["predicted", "labels"])
@pytest.mark.parametrize("parts", ["discovered", "discovered_and_residual"])
def test_every_form_of_the_auxiliary_terms_trains_the_discovered_head_alone(
    target: str, parts: str, backbone: BackboneName, tiny_model: Model, tiny_batch: Batch
) -> None:
    loss = LossSettings.parse({"reconstruction_target": target, "independence_of": parts, "independence_form": "hsic"})
    model = tiny_model(tie_embeddings=False, backbone=backbone)
    for name in ("reconstruction", "independence"):
        assert _reached(model, tiny_batch(), name, EVALUATED, loss) == {"discovered_predictor", "AB"}


@pytest.mark.parametrize("top_k", [3, None])
def test_the_flag_keeps_the_language_gradient_from_the_activations(
    top_k: int | None, tiny_model: Model, tiny_batch: Batch
) -> None:
    """Without a top-k the known part used to be empty under this flag, and K learned nothing."""
    model, batch, plan = tiny_model(tie_embeddings=False), tiny_batch(), replace(EVALUATED, top_k_known=top_k)
    off = LossSettings(lm_grad_to_activations=False)
    assert _reached(model, batch, "language", plan, off) == {"backbone", "K", "lm_head"}
    with_grad, without = (forward(model, batch, _draws(batch), plan, loss) for loss in (LossSettings(), off))
    assert float(without.known.detach().norm()) > 0
    assert torch.equal(with_grad.known, without.known)
    assert torch.equal(with_grad.logits_n, without.logits_n)


@pytest.mark.parametrize("backbone", BACKBONES)
def test_the_backbone_learns_language_through_activations_only_where_that_is_asked_for(
    backbone: BackboneName, tiny_model: Model, tiny_batch: Batch
) -> None:
    model, batch = tiny_model(tie_embeddings=False, backbone=backbone), tiny_batch()
    for through in (True, False):
        loss = LossSettings(lm_grad_through_activations=through)
        reached = _reached(model, batch, "language", EVALUATED, loss, kept=False)
        assert reached == {"known_predictor", "K", "lm_head"} | ({"backbone"} if through else set())
        assert "backbone" in _reached(model, batch, "language", EVALUATED, loss, kept=True)


@pytest.mark.parametrize("backbone", BACKBONES)
def test_known_embeddings_learn_language_only_where_the_residual_is_dropped(
    backbone: BackboneName, tiny_model: Model, tiny_batch: Batch
) -> None:
    model, batch = tiny_model(tie_embeddings=False, backbone=backbone), tiny_batch()
    plan, forced = Plan(0.3, 0.3, 3, 6), Plan(1.0, 1.0, 3, 6)
    assert "K" not in _reached(model, batch, "language", plan, LossSettings(), kept=True)
    assert "K" in _reached(model, batch, "language", plan, LossSettings(), kept=False)
    assert "K" not in _reached(model, batch, "language", forced, LossSettings(), kept=False), (
        "with both forced entirely, k + u = h again"
    )


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: str(path.relative_to(CONFIGS)) if path else "defaults")
def test_known_embeddings_get_a_language_gradient_in_every_shipped_schedule(
    path: Path | None, tiny_model: Model, tiny_batch: Batch
) -> None:
    settings, batch = TrainSettings.load(path), tiny_batch(rows=16)
    shape = settings.model
    check_objective(shape, settings.loss, settings.compose)
    model = tiny_model(
        backbone=shape.backbone,
        interpretable=shape.interpretable,
        use_residual=shape.use_residual,
        factorize_discovered=shape.factorize_discovered,
        use_discovered=shape.discovered_ratio > 0,
    )
    for share in (0.0, 0.5, 0.999):
        draws = _draws(batch, shape.backbone, share, settings)
        plan = plan_at(settings.compose, model, share)
        found = _term(model, batch, draws, "language", plan, settings.loss)
        name = "known_head.concept_embedding.weight" if shape.interpretable else "transformer.tok_emb.weight"
        (grad,) = torch.autograd.grad(found, dict(model.named_parameters())[name])
        assert float(grad.norm()) > 1e-6, f"K would not learn what its concepts say at {share:.0%} of training"


def test_every_training_config_of_the_repository_is_looked_at() -> None:
    assert len(SHIPPED) > 4


def test_composition_follows_its_equations() -> None:
    rng = torch.Generator().manual_seed(0)
    h, k, u, gt = (torch.randn((8, 5), generator=rng, dtype=torch.float64) for _ in range(4))
    plan = Plan(known_forcing=0.7, discovered_forcing=0.2, top_k_known=None, top_k_discovered=None)
    kept = torch.cartesian_prod(*[torch.tensor([True, False])] * 3)
    got = compose(h, k, u, gt, (kept[:, 0], kept[:, 1], kept[:, 2]), plan)
    for n, (with_k, with_u, rho) in enumerate(kept.tolist()):
        mixed_k = 0.7 * gt[n] + 0.3 * k[n]
        mixed_u = 0.2 * (h[n] - gt[n]) + 0.8 * u[n]
        residual = h[n] - mixed_k - mixed_u
        torch.testing.assert_close(got[n], with_k * mixed_k + with_u * mixed_u + rho * residual)
    torch.testing.assert_close(got[0], h[0])


def test_label_embedding_is_the_sum_of_rows_of_the_chunk(tiny_model: Model, tiny_batch: Batch) -> None:
    model, batch = tiny_model(), tiny_batch()
    got, table = label_embedding(model, batch), model.known_head.embedding(slice(0, 7))
    for row, pos in ((0, 0), (0, 1), (2, 5), (4, 12)):
        j = int(batch.chunk[row, pos])
        own = [int(c) for i, c in zip(batch.label_chunk, batch.label_concept, strict=True) if int(i) == j >= 0]
        torch.testing.assert_close(got[row, pos], table[own].sum(0) if own else torch.zeros_like(got[row, pos]))


def test_what_is_read_and_what_is_asked(tiny_model: Model, tiny_batch: Batch) -> None:
    """`cdlm` hides what it predicts; `ar` reads all and predicts what follows (§2.2, §2.3)."""
    batch = tiny_batch()
    tokens, length = batch.tokens, batch.tokens.shape[1]
    for backbone in BACKBONES:
        draws, config = _draws(batch, backbone), tiny_model(backbone=backbone).config
        read, asked = inputs(tokens, draws.predicted, config), targets(tokens, backbone)
        for row, pos in draws.predicted.nonzero().tolist():
            assert read[row, pos] == (config.mask_id if backbone == "cdlm" else tokens[row, pos])
            assert asked[row, pos] == tokens[row, pos + (backbone == "ar")]
        assert torch.equal(read[~draws.predicted], tokens[~draws.predicted])
    following = [
        [bool(p + 1 < length and batch.loss_mask[r, p + 1]) for p in range(length)] for r in range(len(tokens))
    ]
    assert _draws(batch, "ar").predicted.tolist() == following


def _nats(logits: Tensor, tokens: Sequence[int], pos: int, asked: int) -> float:
    return float(-torch.log_softmax(logits[pos], 0)[tokens[asked]].detach())


@pytest.mark.parametrize("interpretable", [True, False])
@pytest.mark.parametrize("backbone", BACKBONES)
@pytest.mark.parametrize("only_answers", [False, True])
def test_the_language_term_is_the_cross_entropy_of_the_deployed_model(
    interpretable: bool, backbone: BackboneName, only_answers: bool, tiny_model: Model, tiny_batch: Batch
) -> None:
    """With nothing dropped and nothing forced, training asks of the forward what a reader of its logits would."""
    model, batch = tiny_model(backbone=backbone, interpretable=interpretable), tiny_batch()
    if only_answers:
        inside = torch.arange(batch.tokens.shape[1]) >= 6
        batch = replace(batch, loss_mask=batch.loss_mask & inside)
    draws = _everywhere(_draws(batch, backbone), residual=True)
    found = _term(model, batch, draws, "language", EVALUATED, LossSettings())
    read = batch.tokens if backbone == "ar" else batch.tokens.masked_fill(draws.predicted, model.config.mask_id)
    shift = 1 if backbone == "ar" else 0
    want, count = 0.0, 0
    for row, logits in zip(range(len(read)), model(read).logits, strict=True):
        tokens = batch.tokens[row].tolist()
        for pos in range(len(tokens) - shift):
            asked = pos + shift
            if batch.loss_mask[row, asked] and (backbone == "ar" or draws.predicted[row, asked]):
                want, count = want + _nats(logits, tokens, pos, asked), count + 1
    assert count == int(draws.predicted.sum()) > 0
    assert float(found.detach()) == pytest.approx(want, rel=1e-9)


@pytest.mark.parametrize("backbone", BACKBONES)
def test_a_plain_model_has_the_language_term_alone_whatever_is_dropped(
    backbone: BackboneName, tiny_model: Model, tiny_batch: Batch
) -> None:
    model, batch = tiny_model(backbone=backbone, interpretable=False), tiny_batch()
    draws = _draws(batch, backbone)
    plan = plan_at(ComposeSettings(), model, 0.2)
    states = forward(model, batch, draws, plan, ALL_ON)
    found = terms(model, batch, draws, present_tokens(batch, 0), states, ALL_ON)
    assert set(found) == {"language"}
    assert torch.equal(states.composed_n, states.hidden[draws.predicted])
    found["language"].total.backward()  # type: ignore[no-untyped-call]
    assert all(p.grad is not None and float(p.grad.norm()) > 0 for p in model.parameters())


@pytest.mark.parametrize("backbone", BACKBONES)
def test_a_model_without_residual_never_sees_one(backbone: BackboneName, tiny_model: Model, tiny_batch: Batch) -> None:
    model, batch = tiny_model(backbone=backbone, use_residual=False), tiny_batch()
    draws = _everywhere(_draws(batch, backbone), residual=True)
    loss = LossSettings(lm_grad_through_activations=True)
    states = forward(model, batch, draws, EVALUATED, loss)
    at = draws.predicted
    torch.testing.assert_close(states.composed_n, (states.known + states.discovered)[at])
    deployed = model(inputs(batch.tokens, at, model.config))
    torch.testing.assert_close(states.logits_n, deployed.logits[at], rtol=1e-9, atol=1e-12)
    assert _reached(model, batch, "language", EVALUATED, loss) >= {"backbone", "known_predictor", "K"}


def test_a_model_without_discovered_concepts_has_no_terms_for_them(tiny_model: Model, tiny_batch: Batch) -> None:
    model, batch = tiny_model(use_discovered=False), tiny_batch()
    draws, plan = _draws(batch), plan_at(ComposeSettings(discovered_forcing=((0.0, 0.9),)), model, 0.1)
    states = forward(model, batch, draws, plan, ALL_ON)
    found = terms(model, batch, draws, present_tokens(batch, 0), states, ALL_ON)
    assert set(found) == {"language", "concept", "token_concept"}
    dropped = ~draws.residual_kept[draws.predicted]
    labels = label_embedding(model, batch)[draws.predicted]
    want = plan.known_forcing * labels + (1 - plan.known_forcing) * states.known[draws.predicted]
    torch.testing.assert_close(states.composed_n[dropped], want[dropped])


def test_sequences_without_known_concepts_keep_all_else(tiny_model: Model, tiny_batch: Batch) -> None:
    """Known-activation dropout (reported 0.1): what is left, h - k, must predict, as when concepts are suppressed."""
    model, batch = tiny_model(), tiny_batch(rows=6)
    settings = ComposeSettings(known_dropout=0.5, residual_dropout=((0.0, 0.9),))
    raw = draw(NoiseSettings(), settings, batch.tokens.shape, 4, 0.6, 0, 0, "cdlm")  # type: ignore[arg-type]
    draws = raw.over(batch.loss_mask)
    gone = ~draws.known_kept
    assert 0 < int(gone.sum()) < 6
    assert bool(draws.residual_kept[gone].all())
    assert bool(draws.discovered_kept[gone].all())
    states = forward(model, batch, draws, EVALUATED, LossSettings())
    place = gone[:, None].expand_as(draws.predicted)[draws.predicted]
    want = (states.hidden - states.known)[draws.predicted][place]
    torch.testing.assert_close(states.composed_n[place], want)


def test_known_dropout_has_its_rate_and_leaves_other_draws_alone() -> None:
    shape, plain, some = (4000, 8), ComposeSettings(), ComposeSettings(known_dropout=0.1)
    without, with_it = (draw(NoiseSettings(), chosen, shape, 4, 0.5, 0, 0, "cdlm") for chosen in (plain, some))
    assert bool(without.known_kept.all())
    assert float((~with_it.known_kept).float().mean()) == pytest.approx(0.1, abs=0.02), "4 standard errors"
    assert torch.equal(without.chosen, with_it.chosen)
    kept = with_it.known_kept
    assert torch.equal(without.residual_kept[kept], with_it.residual_kept[kept])


def test_the_default_ends_without_teacher_forcing() -> None:
    settings = ComposeSettings()
    assert value_at(settings.known_forcing, 1.0) == value_at(settings.discovered_forcing, 1.0) == 0.0


def test_top_k_anneals(tiny_model: Model) -> None:
    """A top-k of all concepts is none: they are summed without a search."""
    model = tiny_model()
    settings = ComposeSettings(top_k_known=((0.0, 7), (0.5, 3)), top_k_discovered=((0.0, 19), (1.0, 6, "linear")))
    assert [plan_at(settings, model, share).top_k_known for share in (0.0, 0.25, 0.9)] == [None, 5, 3]
    assert [plan_at(settings, model, share).top_k_discovered for share in (0.0, 3 / 13, 1.0)] == [None, 16, 6]
    assert plan_at(ComposeSettings(), model, 0.5) == Plan(value_at(ComposeSettings().known_forcing, 0.5), 0.0, 3, 6)


@pytest.mark.parametrize(("reported", "features", "want"), [(None, 3, None), (5, None, 5), (5, 2, 2)])
def test_training_sums_as_many_concepts_as_the_model_does(
    reported: int | None, features: int | None, want: int | None, tiny_model: Model
) -> None:
    """A model that reports no concepts used to train on its top few and to be deployed with all."""
    model = tiny_model(top_k_known=reported, top_k_known_features=features, apply_top_k_to_discovered=False)
    plan = plan_at(ComposeSettings(), model, 0.9)
    assert (plan.top_k_known, plan.top_k_discovered) == (want, None)


@pytest.mark.parametrize(
    ("model", "loss", "chosen", "said"),
    [
        ({"backbone": "ar"}, {"language_weight": "elbo"}, {}, "which backbone ar has not"),
        ({"use_residual": False}, {}, {}, "lm_grad_through_activations true"),
        ({}, {}, {"residual_dropout": [[0.0, 1.0]]}, "residual_dropout 1 leaves"),
    ],
)
def test_objectives_that_cannot_train_the_model_are_refused(
    model: dict[str, object], loss: dict[str, object], chosen: dict[str, object], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        check_objective(ModelSettings.parse(model), LossSettings.parse(loss), ComposeSettings.parse(chosen))


def test_objectives_that_can_train_the_model_are_not() -> None:
    through = LossSettings(lm_grad_through_activations=True)
    dropped = ComposeSettings(residual_dropout=((0.0, 1.0),))
    check_objective(ModelSettings(), LossSettings(language_weight="elbo"), ComposeSettings())
    check_objective(ModelSettings(use_residual=False), through, dropped)
    check_objective(ModelSettings(interpretable=False), LossSettings(), dropped)
    with pytest.raises(ConfigError, match="switch both on, or both off"):
        LossSettings.parse({"lm_grad_to_activations": False, "lm_grad_through_activations": True})
