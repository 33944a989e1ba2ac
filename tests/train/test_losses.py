"""Each term against a twin of a few lines that follows the formula literally."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vitrail.metrics.concept_loss import Aggregation, aggregate_chunks, chunk_concept_loss, prior_loss
from vitrail.train.losses import independence_sum, language_sum, reconstruction_sum, token_concept_sum

D64 = torch.float64


def _rng(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class _Head:
    """A linear head of the simplest form."""

    def __init__(self, weight: torch.Tensor) -> None:
        self.weight, self.num_concepts = weight, len(weight)

    def logits(self, hidden: torch.Tensor, slab: slice) -> torch.Tensor:
        return hidden @ self.weight[slab].T


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000), how=st.sampled_from(["noisy_or", "max", "log_mean_exp"]))
def test_aggregation_follows_its_formula(seed: int, how: Aggregation) -> None:
    z = 3 * torch.randn((11, 5), generator=_rng(seed), dtype=D64)
    chunk = torch.tensor([-1, 0, 0, 0, 1, -1, 2, 2, 2, 2, -1])
    got = aggregate_chunks(z, chunk, 3, how).sigmoid()
    for j in range(3):
        own = z[chunk == j]
        if how == "noisy_or":
            want = 1 - (1 - own.sigmoid()).prod(0)
        elif how == "max":
            want = own.sigmoid().amax(0)
        else:
            want = own.exp().mean(0).log().sigmoid()
        torch.testing.assert_close(got[j], want, rtol=1e-9, atol=0)


@pytest.mark.parametrize("how", ["noisy_or", "max", "log_mean_exp"])
def test_aggregation_survives_extreme_logits(how: Aggregation) -> None:
    z = torch.tensor([[-90.0, 90.0], [-90.0, 90.0]], requires_grad=True)
    logits = aggregate_chunks(z, torch.tensor([0, 0]), 1, how)
    logits.sum().backward()  # type: ignore[no-untyped-call]
    assert z.grad is not None
    assert torch.isfinite(logits).all()
    assert torch.isfinite(z.grad).all()


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000), slab=st.integers(1, 8))
def test_slabs_do_not_change_loss_or_gradient(seed: int, slab: int) -> None:
    rng = _rng(seed)
    weight = torch.randn((7, 3), generator=rng, dtype=D64)
    chunk = torch.tensor([[0, 0, -1, 1, 1], [2, 2, 2, -1, 3]])
    labels = torch.tensor([0, 0, 1, 3]), torch.tensor([6, 2, 0, 5])
    results = []
    for size in (slab, 100):
        hidden = torch.randn((2, 5, 3), generator=_rng(seed), dtype=D64, requires_grad=True)
        loss, count = chunk_concept_loss(_Head(weight), hidden, chunk, 4, *labels, how="log_mean_exp", slab_size=size)
        loss.backward()  # type: ignore[no-untyped-call]
        assert count == 4
        assert hidden.grad is not None
        results.append((loss.detach(), hidden.grad))
    torch.testing.assert_close(results[0], results[1], rtol=1e-10, atol=1e-12)


def test_concept_loss_is_bce_summed_over_chunks_and_concepts() -> None:
    rng = _rng(3)
    hidden, weight = torch.randn((1, 3, 2), generator=rng), torch.randn((3, 2), generator=rng)
    chunk = torch.tensor([[0, 0, -1]])
    loss, _ = chunk_concept_loss(_Head(weight), hidden, chunk, 1, torch.tensor([0]), torch.tensor([2]), how="max")
    p = (hidden[0, :2] @ weight.T).amax(0).sigmoid()
    assert float(loss) == pytest.approx(float(-torch.log(1 - p[:2]).sum() - torch.log(p[2])), rel=1e-5)


def test_prior_loss_by_hand() -> None:
    want = -(0.25 * math.log(0.25) + 0.75 * math.log(0.75))
    assert prior_loss(torch.tensor([1.0, 0.0, 4.0]), 4) == pytest.approx(want)


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_language_loss_plain_and_elbo(seed: int) -> None:
    rng = _rng(seed)
    logits = torch.randn((6, 9), generator=rng, dtype=D64)
    targets = torch.randint(9, (6,), generator=rng)
    noise = 0.1 + 0.9 * torch.rand(6, generator=rng, dtype=D64)
    nats = torch.stack([-torch.log_softmax(row, 0)[y] for row, y in zip(logits, targets, strict=True)])
    torch.testing.assert_close(language_sum(logits, targets, noise, "none"), nats.sum())
    torch.testing.assert_close(language_sum(logits, targets, noise, "elbo"), (nats / noise).sum())


def test_token_concepts_are_bce_over_all_concepts_of_span_tokens() -> None:
    logits = torch.randn((2, 4), generator=_rng(0), dtype=D64)
    got = token_concept_sum(logits, torch.tensor([0, 0, 1]), torch.tensor([1, 3, 0]), 4)
    p, y = logits.sigmoid(), torch.tensor([[0.0, 1, 0, 1], [1, 0, 0, 0]], dtype=D64)
    want = -(y * p.log() + (1 - y) * (1 - p).log()).sum()
    torch.testing.assert_close(got, want)


def test_reconstruction_leaves_the_target_alone() -> None:
    rng = _rng(1)
    u, h, k = (torch.randn((5, 3), generator=rng, dtype=D64, requires_grad=True) for _ in range(3))
    loss = reconstruction_sum(u, h, k)
    want = torch.stack([((u[i] - (h[i] - k[i])) ** 2).mean() for i in range(5)]).sum()
    torch.testing.assert_close(loss, want)
    loss.backward()  # type: ignore[no-untyped-call]
    assert u.grad is not None
    assert h.grad is None
    assert k.grad is None


def _twin_independence(x: torch.Tensor, y: torch.Tensor, form: str) -> torch.Tensor:
    x, y = x - x.mean(0), y - y.mean(0)
    cross: torch.Tensor = torch.linalg.matrix_norm(x.T @ y) ** 2
    own: torch.Tensor = torch.linalg.matrix_norm(x.T @ x) * torch.linalg.matrix_norm(y.T @ y)
    return cross / ((len(x) - 1) ** 2 if form == "hsic" else own)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000), form=st.sampled_from(["hsic", "cka"]))
def test_independence_sums_sequences_and_ignores_padding(seed: int, form: str) -> None:
    rng = _rng(seed)
    x, y = (torch.randn((3, 11, 5), generator=rng, dtype=D64) for _ in range(2))
    present = torch.ones(3, 11, dtype=torch.bool)
    present[1, 7:] = False
    got = independence_sum(x, y, present, "hsic" if form == "hsic" else "cka")
    want = sum(_twin_independence(x[b][present[b]], y[b][present[b]], form) for b in range(3))
    torch.testing.assert_close(got, torch.as_tensor(want), rtol=1e-9, atol=0)


def test_cka_is_one_for_a_rotated_copy_and_ignores_scale() -> None:
    rng = _rng(5)
    x = torch.randn((1, 40, 4), generator=rng, dtype=D64)
    rotation = torch.linalg.qr(torch.randn((4, 4), generator=rng, dtype=D64))[0]
    present = torch.ones(1, 40, dtype=torch.bool)
    assert float(independence_sum(x, 7 * x @ rotation, present, "cka")) == pytest.approx(1.0)


def test_independence_of_silent_parts_is_zero_with_finite_gradient() -> None:
    x = torch.zeros((1, 6, 3), requires_grad=True)
    loss = independence_sum(x, torch.zeros(1, 6, 3), torch.ones(1, 6, dtype=torch.bool), "cka")
    loss.backward()  # type: ignore[no-untyped-call]
    assert float(loss.detach()) == 0.0
    assert x.grad is not None
    assert torch.isfinite(x.grad).all()
