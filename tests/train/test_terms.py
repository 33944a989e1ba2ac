"""The whole is the sum of its parts: micro-batches and ranks, in fp64, for both backbones (§5.4.1)."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from vitrail.model import ConceptLM
from vitrail.packed import PackedBatch
from vitrail.train.masking import BackboneName, Draws, NoiseSettings, RawDraws
from vitrail.train.microbatch import cut, present_tokens, row_slices
from vitrail.train.objective import ComposeSettings, LossSettings, draw, forward, plan_at
from vitrail.train.terms import Term, counts, terms, weighted, weights

Model = Callable[..., ConceptLM]
Batch = Callable[..., PackedBatch]
ROWS = 5
ALL_ON = LossSettings(token_concept=0.1, independence_of="discovered_and_residual", reconstruction_target="labels")
COMPOSE = ComposeSettings(discovered_forcing=((0.0, 0.3),), known_dropout=0.3)


def _raw(batch: PackedBatch, backbone: BackboneName, share: float = 0.3) -> RawDraws:
    rows, length = batch.tokens.shape
    return draw(NoiseSettings(), COMPOSE, (rows, length), 4, share, 0, 11, backbone)


def _whole(batch: PackedBatch, backbone: BackboneName) -> tuple[Draws, Tensor]:
    return _raw(batch, backbone).over(batch.loss_mask), present_tokens(batch, 0)


def _gradients(
    model: ConceptLM, batch: PackedBatch, ranks: Sequence[slice], micro: int | None, loss: LossSettings = ALL_ON
) -> dict[str, Tensor]:
    """What a run of several ranks adds up to: counts of the whole first, then each rank's micro-batches."""
    backbone, plan = model.config.backbone, plan_at(COMPOSE, model, 0.3)
    parts = [(cut(batch, rank), _raw(batch, backbone).rows(rank)) for rank in ranks]
    own = [(part, raw.over(part.loss_mask), present_tokens(part, 0)) for part, raw in parts]
    found = [counts(part, draws, present, loss) for part, draws, present in own]
    count = {name: sum(each[name] for each in found) for name in found[0]}
    total: dict[str, Tensor] = {}
    for part, draws, present in own:
        for rows in row_slices(len(part.tokens), micro):
            piece, drawn = cut(part, rows), draws.rows(rows)
            states = forward(model, piece, drawn, plan, loss)
            sums = terms(model, piece, drawn, present[rows], states, loss)
            value = weighted(sums, weights(loss), count)
            value.backward()  # type: ignore[no-untyped-call]
            total["loss"] = total.get("loss", torch.zeros(())) + value.detach()
    return total | {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("interpretable", [True, False])
@pytest.mark.parametrize("backbone", ["cdlm", "ar"])
def test_micro_batches_and_ranks_do_not_change_loss_or_gradient(
    backbone: BackboneName, interpretable: bool, tiny_model: Model, tiny_batch: Batch
) -> None:
    batch = tiny_batch(rows=ROWS)
    everything = slice(0, ROWS)
    layouts: list[tuple[list[slice], int | None]] = [([everything], size) for size in (1, 2, 3)]
    layouts += [([slice(0, 2), slice(2, ROWS)], size) for size in (None, 1, 2)]
    layouts += [([slice(n, n + 1) for n in range(ROWS)], None)]
    want = _gradients(tiny_model(backbone=backbone, interpretable=interpretable), batch, [everything], None)
    assert len(want) == 1 + sum(1 for _ in tiny_model(backbone=backbone, interpretable=interpretable).parameters())
    for ranks, micro in layouts:
        got = _gradients(tiny_model(backbone=backbone, interpretable=interpretable), batch, ranks, micro)
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-11)


def test_the_elbo_weight_is_as_indifferent_to_layout(tiny_model: Model, tiny_batch: Batch) -> None:
    batch, loss = tiny_batch(rows=ROWS), LossSettings(language_weight="elbo")
    want = _gradients(tiny_model(), batch, [slice(0, ROWS)], None, loss)
    got = _gradients(tiny_model(), batch, [slice(0, 3), slice(3, ROWS)], 2, loss)
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("slab", [1, 3])
def test_the_slab_does_not_change_loss_or_gradient(slab: int, tiny_model: Model, tiny_batch: Batch) -> None:
    batch = tiny_batch(rows=ROWS)
    want, got = (_gradients(tiny_model(slab=size), batch, [slice(0, ROWS)], None) for size in (4096, slab))
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("weight", ["none", "elbo"])
def test_counts_add_up_over_parts(weight: str, tiny_batch: Batch) -> None:
    batch, loss = tiny_batch(rows=ROWS), LossSettings.parse({"language_weight": weight})
    draws, present = _whole(batch, "cdlm")
    whole = counts(batch, draws, present, loss)
    parts = [counts(cut(batch, r), draws.rows(r), present[r], loss) for r in row_slices(ROWS, 2)]
    assert {name: sum(part[name] for part in parts) for name in whole} == whole
    predicted, asked = int(draws.predicted.sum()), int((batch.tokens != 0).sum())
    assert whole == {
        "language": asked if weight == "elbo" else predicted,
        "concept": batch.num_chunks,
        "token_concept": len(set(batch.span_pos.tolist())),
        "reconstruction": predicted,
        "independence": ROWS,
    }
    assert 0 < predicted < asked < batch.tokens.numel()


def test_counts_are_those_of_the_terms(tiny_model: Model, tiny_batch: Batch) -> None:
    model, batch = tiny_model(), tiny_batch(rows=ROWS)
    draws, present = _whole(batch, "cdlm")
    states = forward(model, batch, draws, plan_at(COMPOSE, model, 0.3), ALL_ON)
    found = terms(model, batch, draws, present, states, ALL_ON)
    assert {name: term.count for name, term in found.items()} == counts(batch, draws, present, ALL_ON)
    assert set(found) == set(weights(ALL_ON))
    off = LossSettings(concept=0.0, reconstruction=0.0, independence=0.0, token_concept=0.0)
    assert set(terms(model, batch, draws, present, states, off)) == {"language"}


def test_the_loss_is_the_weighted_sum_of_means() -> None:
    found = {"a": Term(torch.tensor(6.0), 2.0), "b": Term(torch.tensor(5.0), 4.0)}
    got = weighted(found, {"a": 0.5, "b": 2.0}, {"a": 3.0, "b": 10.0})
    assert float(got) == pytest.approx(0.5 * 6 / 3 + 2 * 5 / 10)
    assert float(weighted({"a": Term(torch.tensor(0.0), 0.0)}, {"a": 1.0}, {"a": 0.0})) == 0.0, "nothing asked"


@pytest.mark.parametrize("form", ["hsic", "cka"])
def test_the_two_forms_of_independence(form: str, tiny_model: Model, tiny_batch: Batch) -> None:
    """Pretraining pairs û with k̂; mid-training adds ε̂ = (h - k̂) - û at the same total weight (§10.2.2)."""
    model, batch = tiny_model(), tiny_batch(rows=ROWS)
    draws, present = _whole(batch, "cdlm")
    plan = plan_at(COMPOSE, model, 0.3)
    got: dict[str, float] = {}
    for parts in ("discovered", "discovered_and_residual"):
        loss = LossSettings.parse({"independence_of": parts, "independence_form": form})
        states = forward(model, batch, draws, plan, loss)
        total = terms(model, batch, draws, present, states, loss)["independence"].total
        got[parts] = float(total.detach())
    first = second = 0.0
    for row, inside in enumerate(present):
        known, discovered, hidden = (
            part[row][inside].detach() for part in (states.known, states.discovered, states.hidden)
        )
        first += _dependence(discovered, known, form)
        second += _dependence(hidden - known - discovered, known, form)
    assert got["discovered"] == pytest.approx(first, rel=1e-8)
    assert got["discovered_and_residual"] == pytest.approx(0.5 * first + 0.5 * second, rel=1e-8)


def _dependence(x: Tensor, y: Tensor, form: str) -> float:
    """Linear HSIC as its definition: squared covariances of all pairs of coordinates."""
    x, y = x - x.mean(0), y - y.mean(0)

    def cross(a: Tensor, b: Tensor) -> float:
        return sum(float(a[:, i].dot(b[:, j])) ** 2 for i in range(a.shape[1]) for j in range(b.shape[1]))

    scale = (len(x) - 1) ** 2 if form == "hsic" else (cross(x, x) * cross(y, y)) ** 0.5
    return cross(x, y) / scale
