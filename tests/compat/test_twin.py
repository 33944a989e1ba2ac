"""The package against the specification written a second time, over all flags, in fp64 to 1e-9."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.compat.checkpoints import FLAG_SETS, MASK, checkpoint
from tests.compat.twin import Array, Head, Twin
from vitrail.compat import Intervention, ReferenceForward, dense_activations, reference_forward
from vitrail.compat.interventions import Rule
from vitrail.model import ConceptLM, DecomposedOutput, Injection

SEEDS = st.integers(0, 999)
# Long enough for three blocks of 5, and for one that stays incomplete.
LENGTHS = st.integers(1, 12)
TOLERANCE = 1e-9


def _ids(length: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, 30, (2, length), generator=generator)
    return ids.masked_fill(torch.rand(2, length, generator=generator) < 0.4, MASK)


def _loaded(flags: dict[str, Any], seed: int, loudness: float = 1.0) -> tuple[ConceptLM, Twin]:
    with tempfile.TemporaryDirectory() as directory:
        return checkpoint(Path(directory), seed, loudness, **flags)


def _assert_close(got: Tensor, wanted: Array, name: str) -> None:
    torch.testing.assert_close(
        got.detach(), torch.from_numpy(wanted), rtol=TOLERANCE, atol=TOLERANCE, msg=lambda text: f"{name}: {text}"
    )


def _assert_same_forward(got: ReferenceForward, parts: dict[str, Array]) -> None:
    for name, wanted in parts.items():
        part = getattr(got, name)
        assert part is not None, name
        _assert_close(part, wanted, name)
    assert (got.correction is None) == ("correction" not in parts)


def _assert_same_report(ids: Tensor, logits: Tensor, twin: Twin, head: Head | None, hidden: Array) -> None:
    if head is None:
        assert ids.shape[-1] == 0
        return
    wanted_ids, wanted_logits = twin.reported(head, hidden)
    np.testing.assert_array_equal(ids.numpy(), wanted_ids, err_msg=head.kind)
    _assert_close(logits, wanted_logits, f"{head.kind} logits")


@settings(max_examples=40, deadline=None)
@given(flags=FLAG_SETS, seed=SEEDS, length=LENGTHS)
@torch.no_grad()
def test_forward(flags: dict[str, Any], seed: int, length: int) -> None:
    (model, twin), ids = _loaded(flags, seed), _ids(length, seed)
    hidden = twin.hidden(ids.numpy())
    parts = twin.composed(hidden)
    got = reference_forward(model, ids)
    _assert_close(got.hidden, hidden, "hidden")
    _assert_same_forward(got, parts)
    _assert_same_report(got.known_ids, got.known_logits, twin, twin.known, hidden)
    _assert_same_report(got.discovered_ids, got.discovered_logits, twin, twin.unknown, hidden)
    _assert_same_decomposition(model(ids), parts)


def _assert_same_decomposition(got: DecomposedOutput, parts: dict[str, Array]) -> None:
    """What every other part of the project sees is the same function under our names."""
    for name in ("known", "discovered", "composed", "logits", "unexplained"):
        _assert_close(getattr(got, name), parts[name], name)
    _assert_close(got.discovered + got.residual, parts["discovered_for_lm"], "discovered + residual")


@settings(max_examples=30, deadline=None)
@given(flags=FLAG_SETS, seed=SEEDS, length=LENGTHS)
@torch.no_grad()
def test_reported_concepts(flags: dict[str, Any], seed: int, length: int) -> None:
    (model, twin), ids = _loaded(flags, seed), _ids(length, seed)
    hidden, got = twin.hidden(ids.numpy()), model(ids)
    _assert_same_report(got.known_ids, got.known_logits, twin, twin.known, hidden)
    _assert_same_report(got.discovered_ids, got.discovered_logits, twin, twin.unknown, hidden)


@settings(max_examples=30, deadline=None)
@given(flags=FLAG_SETS, seed=SEEDS, length=LENGTHS)
@torch.no_grad()
def test_dense_outputs(flags: dict[str, Any], seed: int, length: int) -> None:
    (model, twin), ids = _loaded(flags, seed), _ids(length, seed)
    hidden = twin.hidden(ids.numpy())
    for got, head in zip(dense_activations(model, model.hidden(ids)), (twin.known, twin.unknown), strict=True):
        assert got is not None
        if head is None:
            assert got.logits.shape[-1] == got.weights.shape[-1] == 0
            continue
        logits, weights = twin.dense(head, hidden)
        _assert_close(got.logits, logits, f"{head.kind} logits")
        _assert_close(got.weights, weights, f"{head.kind} weights")


@settings(max_examples=20, deadline=None)
@given(flags=FLAG_SETS, seed=SEEDS, length=LENGTHS)
@torch.no_grad()
def test_logits_beyond_the_clamp(flags: dict[str, Any], seed: int, length: int) -> None:
    """Without top-k: at the clamp the choice of the best is a tie."""
    flags |= {"topk_known": None, "apply_topk_to_unknown": False, "use_epsilon_correction": False}
    (model, twin), ids = _loaded(flags, seed, loudness=30.0), _ids(length, seed)
    hidden = twin.hidden(ids.numpy())
    assert twin.known is not None
    assert np.abs(twin.dense(twin.known, hidden)[0]).max() == 15
    _assert_same_forward(reference_forward(model, ids), twin.composed(hidden))


@settings(max_examples=30, deadline=None)
@given(flags=FLAG_SETS, seed=SEEDS, length=LENGTHS, layer=st.integers(0, 4))
@torch.no_grad()
def test_injection(flags: dict[str, Any], seed: int, length: int, layer: int) -> None:
    (model, twin), ids = _loaded(flags, seed), _ids(length, seed)
    vector = torch.randn(2, 24, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    hidden = twin.hidden(ids.numpy(), (vector.numpy(), (ids == MASK).numpy(), layer))
    got = reference_forward(model, ids, injection=Injection(vector, ids == MASK, layer))
    _assert_close(got.hidden, hidden, "hidden")
    _assert_same_forward(got, twin.composed(hidden))


@settings(max_examples=30, deadline=None)
@given(flags=FLAG_SETS, seed=SEEDS, length=LENGTHS)
@torch.no_grad()
def test_a_plain_backbone_has_no_concepts(flags: dict[str, Any], seed: int, length: int) -> None:
    (model, twin), ids = _loaded(flags | {"interpretable": False}, seed), _ids(length, seed)
    hidden = twin.hidden(ids.numpy())
    got = model(ids)
    _assert_close(got.hidden, hidden, "hidden")
    _assert_close(got.logits, hidden @ twin.lm_head.T, "logits")
    assert got.known_ids.shape[-1] == got.discovered_ids.shape[-1] == 0


def _intervention(count: int, length: int, seed: int) -> Intervention:
    """Three slots a position: some empty, some concepts twice, values beyond [0, 1]."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(-1, min(count, 4), (2, length, 3), generator=generator)
    return Intervention(ids, 3 * torch.randn(ids.shape, generator=generator, dtype=torch.float64))


def _edits(intervention: Intervention | None) -> dict[tuple[int, int], list[tuple[int, float]]] | None:
    if intervention is None:
        return None
    pairs = torch.stack((intervention.ids.double(), intervention.values), dim=-1)
    return {
        (row, pos): [(int(concept), value) for concept, value in pairs[row, pos].tolist()]
        for row in range(pairs.shape[0])
        for pos in range(pairs.shape[1])
    }


@settings(max_examples=40, deadline=None)
@given(
    flags=FLAG_SETS,
    seed=SEEDS,
    length=LENGTHS,
    rule=st.sampled_from(["dense", "sparse"]),
    edited=st.sampled_from([(True, False), (False, True), (True, True)]),
)
@torch.no_grad()
def test_interventions(flags: dict[str, Any], seed: int, length: int, rule: Rule, edited: tuple[bool, bool]) -> None:
    (model, twin), ids = _loaded(flags, seed), _ids(length, seed)
    known = _intervention(13, length, seed) if edited[0] else None
    unknown = _intervention(29, length, seed + 1) if edited[1] and flags["use_unknown"] else None
    got = reference_forward(model, ids, known=known, discovered=unknown, discovered_rule=rule)
    hidden = twin.hidden(ids.numpy())
    _assert_same_forward(got, twin.composed(hidden, _edits(known), _edits(unknown), rule))
    if known is not None:
        assert got.known_ids.shape[-1] == 0, "the dense rule reports no concepts"
