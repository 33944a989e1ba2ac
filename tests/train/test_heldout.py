"""Held-out figures: what they are, and that ranks share the work without changing them."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from vitrail.metrics.concept_loss import chunk_concept_loss, prior_loss
from vitrail.metrics.independence import linear_cka, linear_hsic
from vitrail.model import ConceptLM
from vitrail.packed import PackedCorpus
from vitrail.train.heldout import batches_of, evaluate, finish, sums
from vitrail.train.masking import draw_masks, generator
from vitrail.train.settings import HeldoutSettings

Model = Callable[..., ConceptLM]
SETTINGS = HeldoutSettings(sequences=21)
SEED = 5


@pytest.fixture
def packed(tiny_packed: PackedCorpus) -> PackedCorpus:
    tiny_packed.sizes["heldout"] = 23  # type: ignore[attr-defined]
    return tiny_packed


def _figures(model: ConceptLM, packed: PackedCorpus) -> dict[str, float]:
    return evaluate(model, packed, SETTINGS, "log_mean_exp", SEED)


@pytest.mark.parametrize("interpretable", [True, False])
@pytest.mark.parametrize("backbone", ["cdlm", "ar"])
@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_ranks_share_the_work(
    world: int, backbone: str, interpretable: bool, tiny_model: Model, packed: PackedCorpus
) -> None:
    model = tiny_model(backbone=backbone, interpretable=interpretable)
    parts = [list(batches_of(packed, SETTINGS, rank, world)) for rank in range(world)]
    assert len({len(part) for part in parts}) == 1, "ranks run their forwards together"
    counted = [item.number for part in parts for item in part if item.is_counted]
    assert sorted(counted) == [0, 1, 2]
    found = [sums(model, part, SETTINGS.noise, "log_mean_exp", SEED) for part in parts]
    total = [sum(values) for values in zip(*found, strict=True)]
    assert finish(total) == pytest.approx(_figures(model, packed), rel=1e-12)


def _places(model: ConceptLM, tokens: Tensor, number: int) -> list[tuple[int, int]]:
    """Positions that are masked (`cdlm`), or that precede a token (`ar`)."""
    rows, length = tokens.shape
    if model.config.backbone == "ar":
        return [(r, p) for r in range(rows) for p in range(length - 1) if tokens[r, p + 1] != 0]
    levels = torch.full((rows, -(-length // model.config.block)), SETTINGS.noise)
    _, chosen = draw_masks(levels, model.config.block, length, generator(SEED, "heldout", number))
    return [(r, p) for r in range(rows) for p in range(length) if chosen[r, p] and tokens[r, p] != 0]


@pytest.mark.parametrize("backbone", ["cdlm", "ar"])
@pytest.mark.parametrize("use_residual", [True, False])
@pytest.mark.parametrize("top_k", [3, None])
@torch.no_grad()
def test_figures_are_those_of_the_deployed_model(
    backbone: str, use_residual: bool, top_k: int | None, tiny_model: Model, packed: PackedCorpus
) -> None:
    """Position by position, from the public forward alone."""
    model = tiny_model(backbone=backbone, use_residual=use_residual, top_k_known=top_k)
    found, shift = _figures(model, packed), int(backbone == "ar")
    table = model.transformer.lm_head.weight
    rows: dict[str, list[float]] = {
        name: [] for name in ("loss", "accuracy", "known_alone", "without_residual", "k", "u")
    }
    concept, cka, hsic, chunks, positives = 0.0, 0.0, 0.0, 0, torch.zeros(7)
    for number in range(3):
        batch = packed.batch("heldout", list(range(8 * number, min(8 * number + 8, 21))))
        places, read = _places(model, batch.tokens, number), batch.tokens.clone()
        for r, p in places if backbone == "cdlm" else []:
            read[r, p] = model.config.mask_id
        out = model(read)
        for r, p in places:
            y, best = int(batch.tokens[r, p + shift]), int(out.logits[r, p].argmax())
            k, u, e = (part[r, p] for part in (out.known, out.discovered, out.residual))
            rows["loss"].append(-float(torch.log_softmax(out.logits[r, p], 0)[y]))
            rows["accuracy"].append(float(best == y))
            rows["known_alone"].append(-float(torch.log_softmax(table @ k, 0)[y]))
            rows["without_residual"].append(-float(torch.log_softmax(table @ (k + u), 0)[y]))
            pushes = [abs(float(part @ table[best])) for part in (k, u, e)]
            rows["k"].append(pushes[0] / sum(pushes))
            rows["u"].append(pushes[1] / sum(pushes))
        labels = (batch.label_chunk, batch.label_concept)
        concept += float(
            chunk_concept_loss(
                model.known_head, out.hidden, batch.chunk, batch.num_chunks, *labels, how="log_mean_exp"
            )[0]
        )
        chunks += batch.num_chunks
        positives += torch.bincount(batch.label_concept, minlength=7)
        cka += float(linear_cka(out.discovered, out.known, batch.tokens != 0).sum())
        hsic += float(linear_hsic(out.discovered, out.known, batch.tokens != 0).sum())
    mean = {name: sum(values) / len(values) for name, values in rows.items()}
    assert found == pytest.approx(
        {
            **{name: mean[name] for name in ("loss", "accuracy", "known_alone", "without_residual")},
            "contribution_known": mean["k"],
            "contribution_discovered": mean["u"],
            "concept_loss": concept / chunks,
            "concept_gain": prior_loss(positives, chunks) - concept / chunks,
            "independence": cka / 21,
            "independence_hsic": hsic / 21,
        },
        rel=1e-5,
    ), "losses and shares are summed in fp32"
    assert len(set(found.values())) >= len(found) - (not use_residual), "no two figures are one by accident"


@pytest.mark.parametrize("backbone", ["cdlm", "ar"])
def test_a_plain_model_has_loss_and_accuracy_alone(backbone: str, tiny_model: Model, packed: PackedCorpus) -> None:
    model = tiny_model(backbone=backbone, interpretable=False)
    found = _figures(model, packed)
    assert set(found) == {"loss", "accuracy"}
    twin = _figures(tiny_model(backbone=backbone), packed)
    assert found["loss"] == pytest.approx(twin["loss"]), "same seed, same backbone, and the residual completes h"


def test_a_model_without_discovered_concepts(tiny_model: Model, packed: PackedCorpus) -> None:
    found = _figures(tiny_model(use_discovered=False), packed)
    assert found["contribution_discovered"] == found["independence"] == 0.0
    assert 0 < found["contribution_known"] < 1


@pytest.mark.parametrize("interpretable", [True, False])
@pytest.mark.parametrize("world", [1, 2])
def test_nothing_is_found_where_nothing_is_held_out(
    world: int, interpretable: bool, tiny_model: Model, packed: PackedCorpus
) -> None:
    packed.sizes["heldout"] = 0  # type: ignore[attr-defined]
    model = tiny_model(interpretable=interpretable)
    found = [sums(model, batches_of(packed, SETTINGS, rank, world), 0.5, "max", 0) for rank in range(world)]
    assert finish([sum(values) for values in zip(*found, strict=True)]) == {}
