"""Streamed heads equal their dense twin, forward and backward; and never hold all activations."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode

from tests.model.shapes import small_config
from vitrail.model import ConceptHead, ModelConfig, init_model
from vitrail.model.heads import HeadOutput

HEADS = st.fixed_dictionaries(
    {
        "use_attention_known": st.booleans(),
        "use_attention_discovered": st.booleans(),
        "factorize_discovered": st.booleans(),
        "top_k_on_logits": st.booleans(),
        "slab": st.sampled_from([1, 4, 7, 4096]),
    }
)


def dense_twin(head: ConceptHead, hidden: Tensor, k: int | None, k_f: int | None) -> HeadOutput:
    """The head as the specification words it, with every logit and every embedding row at once."""
    embedding = head.embedding(slice(0, head.num_concepts))
    logits = head.logits(hidden, slice(0, head.num_concepts)).clamp(-15, 15)
    if k is None or k_f is None:
        empty = logits[..., :0]
        return HeadOutput(logits.sigmoid() @ embedding, empty.long(), empty)
    ids = logits.sigmoid().topk(min(k_f, head.num_concepts)).indices
    picked = logits.gather(-1, ids)
    features = torch.einsum("...k,...kd->...d", picked.sigmoid(), embedding[ids])
    return HeadOutput(features, ids[..., :k], picked[..., :k])


def _heads(config: ModelConfig, seed: int) -> list[ConceptHead]:
    """Both heads with weights whose logits stay within the clamp: at the clamp the choice is a tie."""
    model = init_model(config, seed).double()
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.data.normal_(std=0.5, generator=generator)
    return [model.known_head, model.unknown_head]


def _gradients(head: ConceptHead, hidden: Tensor, output: HeadOutput) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(7)
    loss = torch.zeros((), dtype=torch.float64)
    for part in (output.features, output.logits):
        loss = loss + (part * torch.randn(part.shape, generator=generator, dtype=torch.float64)).sum()
    wanted = {"hidden": hidden, **dict(head.named_parameters())}
    grads = torch.autograd.grad(loss, list(wanted.values()), allow_unused=True, materialize_grads=True)
    return dict(zip(wanted, grads, strict=True))


@settings(max_examples=25, deadline=None)
@given(flags=HEADS, k=st.sampled_from([None, 1, 3, 40]), seed=st.integers(0, 99))
def test_streamed_equals_dense(flags: dict[str, Any], k: int | None, seed: int) -> None:
    for head in _heads(small_config(**flags), seed):
        hidden = torch.randn(2, 3, 12, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        hidden.requires_grad_()
        streamed, dense = head.features(hidden, k), dense_twin(head, hidden, k, k)
        torch.testing.assert_close(streamed.features, dense.features, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(streamed.ids, dense.ids)
        torch.testing.assert_close(streamed.logits, dense.logits, rtol=1e-10, atol=1e-10)
        wanted = _gradients(head, hidden, dense)
        for name, grad in _gradients(head, hidden, streamed).items():
            torch.testing.assert_close(grad, wanted[name], rtol=1e-9, atol=1e-9, msg=name)


@pytest.mark.parametrize(("k", "k_f"), [(3, 5), (5, 3), (3, 3), (3, 99)])
@pytest.mark.parametrize("slab", [4, 4096])
@pytest.mark.parametrize("use_attention", [True, False])
def test_reported_and_summed_concepts_may_differ(k: int, k_f: int, slab: int, use_attention: bool) -> None:
    flags = {"top_k_known": k, "top_k_known_features": k_f, "slab": slab, "use_attention_known": use_attention}
    head = _heads(small_config(**flags), 0)[0]
    hidden = torch.randn(2, 3, 12, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    hidden.requires_grad_()
    got, wanted = head(hidden), dense_twin(head, hidden, k, k_f)
    expected = _gradients(head, hidden, wanted)
    for name, grad in _gradients(head, hidden, got).items():
        torch.testing.assert_close(grad, expected[name], rtol=1e-9, atol=1e-9, msg=name)
    assert got.ids.shape[-1] == min(k, k_f, 13)
    torch.testing.assert_close(got.ids, wanted.ids)
    torch.testing.assert_close(got.logits, wanted.logits)
    torch.testing.assert_close(got.features, wanted.features)


@pytest.mark.parametrize("k", [None, 5])
@pytest.mark.parametrize("use_attention", [True, False])
@pytest.mark.parametrize("number", [0, 1])
def test_gradients_are_those_of_finite_differences(k: int | None, use_attention: bool, number: int) -> None:
    """Of states and of every parameter, padding included, without the twin."""
    flags = {"use_attention_known": use_attention, "use_attention_discovered": use_attention, "slab": 4}
    head = _heads(small_config(**flags), 1)[number]
    hidden = torch.randn(1, 2, 12, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    names = [name for name, _ in head.named_parameters()]

    def features(states: Tensor, *parameters: Tensor) -> Tensor:
        called = functional_call(head, dict(zip(names, parameters, strict=True)), (states,), {"top_k": k})
        assert isinstance(called, HeadOutput)
        return called.features

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(head, "forward", head.features)
        assert torch.autograd.gradcheck(features, (hidden.requires_grad_(), *head.parameters()), fast_mode=True)


@settings(max_examples=25, deadline=None)
@given(flags=HEADS, num_chosen=st.integers(1, 6), seed=st.integers(0, 99))
def test_chosen_concepts_equal_those_of_the_dense_head(flags: dict[str, Any], num_chosen: int, seed: int) -> None:
    """Logits, weighted sums and products of any ids, repeated ones too, forward and backward."""
    for head in _heads(small_config(**flags), seed):
        generator = torch.Generator().manual_seed(seed)
        hidden = torch.randn(2, 3, 12, generator=generator, dtype=torch.float64, requires_grad=True)
        weights = torch.randn(2, 3, num_chosen, generator=generator, dtype=torch.float64, requires_grad=True)
        ids = torch.randint(head.num_concepts, (2, 3, num_chosen), generator=generator)
        everything = slice(0, head.num_concepts)
        rows = head.embedding(everything)[ids]
        dense = {
            "logits": head.logits(hidden, everything).clamp(-15, 15).gather(-1, ids),
            "sum": torch.einsum("btk,btkd->btd", weights, rows),
            "dots": torch.einsum("btd,btkd->btk", hidden, rows),
        }
        chosen = {
            "logits": head.logits_for(hidden, ids),
            "sum": head.sum_for(weights, ids),
            "dots": head.dots_for(hidden, ids),
        }
        inputs = (hidden, weights, *head.parameters())
        for name, wanted in dense.items():
            torch.testing.assert_close(chosen[name], wanted, rtol=1e-10, atol=1e-10, msg=name)
            towards = torch.randn(wanted.shape, generator=generator, dtype=torch.float64)
            got, expected = (
                torch.autograd.grad(
                    (out * towards).sum(), inputs, allow_unused=True, materialize_grads=True, retain_graph=True
                )
                for out in (chosen[name], wanted)
            )
            torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("number", [0, 1])
def test_no_chosen_concept_adds_nothing(number: int) -> None:
    head, hidden = _heads(small_config(), 0)[number], torch.ones(2, 3, 12, dtype=torch.float64)
    ids = torch.zeros(2, 3, 0, dtype=torch.long)
    assert head.logits_for(hidden, ids).shape == head.dots_for(hidden, ids).shape == (2, 3, 0)
    assert head.sum_for(torch.zeros(2, 3, 0, dtype=torch.float64), ids).abs().max() == 0


@pytest.mark.parametrize("factorize", [True, False])
def test_an_edit_of_activations_sets_them(factorize: bool) -> None:
    """Σ (value − σ(logit)) E_c beside the sum over all concepts is the sum with those activations replaced."""
    head = _heads(small_config(factorize_discovered=factorize, slab=4), 2)[1]
    hidden = torch.randn(2, 3, 12, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    ids = torch.tensor([3, 17]).expand(2, 3, 2)
    values = torch.tensor([0.25, -2.0], dtype=torch.float64).expand(2, 3, 2)
    edited = head.features(hidden, None).features + head.sum_for(values - head.logits_for(hidden, ids).sigmoid(), ids)
    everything = slice(0, head.num_concepts)
    activations = head.logits(hidden, everything).clamp(-15, 15).sigmoid().scatter(-1, ids, values)
    torch.testing.assert_close(edited, activations @ head.embedding(everything), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("slab", [4, 4096])
def test_logits_are_clamped_and_pass_no_gradient_beyond(slab: int) -> None:
    head = _heads(small_config(slab=slab), 3)[0]
    hidden = torch.full((1, 1, 12), 1e4, dtype=torch.float64, requires_grad=True)
    output = head.features(hidden, 4)
    assert output.logits.abs().max() == 15
    (grad,) = torch.autograd.grad(output.features.sum(), hidden)
    assert grad.abs().max() == 0


@pytest.mark.parametrize("slab", [4, 4096])
def test_padding_rows_are_never_read(slab: int) -> None:
    head = _heads(small_config(slab=slab, num_concepts=13, pad_multiple=16), 4)[0]
    hidden = torch.randn(1, 5, 12, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    before = head(hidden)
    for parameter in head.parameters():
        parameter.data[13:] = float("nan")
    assert torch.equal(head(hidden).features, before.features)


@pytest.mark.parametrize("slab", [4, 4096])
@pytest.mark.parametrize("use_attention", [True, False])
def test_bf16_selects_and_sums_like_fp64(slab: int, use_attention: bool) -> None:
    """bf16 keeps 8 bits: features agree to a few per cent of their size, logits of the kept to 0.1."""
    head = _heads(small_config(slab=slab, use_attention_known=use_attention), 5)[0].bfloat16()
    hidden = torch.randn(2, 3, 12, generator=torch.Generator().manual_seed(1)).bfloat16()
    got = head(hidden)
    torch.autograd.backward([got.features.sum()])
    assert got.features.dtype == torch.bfloat16
    assert got.logits.dtype == torch.float32
    assert all(x.grad is not None and x.grad.dtype == torch.bfloat16 for x in head.parameters())
    wanted = dense_twin(head.double(), hidden.double(), 3, 5)
    torch.testing.assert_close(got.logits.double(), wanted.logits, rtol=0.02, atol=0.1)
    error = (got.features.double() - wanted.features).abs().max() / wanted.features.abs().max()
    assert error < 0.03


class _Largest(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the largest tensor any operation returns."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for part in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(part, Tensor):
                self.numel = max(self.numel, part.numel())
        return result


@pytest.mark.parametrize("k", [None, 5])
def test_memory_follows_the_slab_not_the_concepts(k: int | None) -> None:
    num_positions, num_concepts, slab = 2 * 300, 1000, 16
    for head in _heads(small_config(num_concepts=num_concepts, num_discovered=num_concepts, slab=slab), 6):
        hidden = torch.randn(2, 300, 12, dtype=torch.float64, requires_grad=True)
        with _Largest() as largest:
            torch.autograd.backward([head.features(hidden, k).features.sum()])
        parameters = max(parameter.numel() for parameter in head.parameters())
        assert largest.numel <= max(parameters, num_positions * (slab + 5), num_positions * 12)
        assert largest.numel < num_positions * num_concepts / 10


@pytest.mark.parametrize("k", [None, 5])
def test_factorised_rows_are_never_written_out(k: int | None) -> None:
    """Neither U = A·B, nor its gradient, nor the rows of each position (30,000 numbers even in rank 3)."""
    head = _heads(small_config(num_discovered=1000, slab=32), 6)[1]
    hidden = torch.randn(1, 200, 12, dtype=torch.float64, requires_grad=True)
    with _Largest() as largest:
        torch.autograd.backward([head.features(hidden, k).features.sum()])
        ids = torch.randint(1000, (1, 200, 50))
        edited = head.sum_for(head.logits_for(hidden, ids).sigmoid(), ids).sum() + head.dots_for(hidden, ids).sum()
        torch.autograd.backward([edited])
    assert largest.numel < 1000 * 12
