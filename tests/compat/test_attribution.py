"""What concept attributions must satisfy whatever the checkpoint, and how rows fall into chunks."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.compat.checkpoints import FLAG_SETS, checkpoint
from vitrail.compat import ReferenceIds, ReferenceOptions, attribute_concepts, chunk_attributions, chunk_spans
from vitrail.errors import ConfigError

GREEDY = ReferenceOptions(max_new_tokens=10, use_entropy_sampling=False, top_p=0.0, steps=4)


@settings(max_examples=8, deadline=None)
@given(flags=FLAG_SETS, seed=st.integers(0, 99))
def test_without_a_correction_the_listed_concepts_are_the_whole_logit(
    tmp_path_factory: pytest.TempPathFactory, flags: dict[str, Any], seed: int
) -> None:
    """The rest is a difference, so it proves something only where it must be zero."""
    whole = {"use_unknown": True, "use_epsilon_correction": False, "topk_known": 3, "topk_known_features": 3}
    top = {"apply_topk_to_unknown": True, "unknown_topk": 7}
    model, _ = checkpoint(tmp_path_factory.mktemp("model"), seed, **(flags | whole | top))
    got = attribute_concepts(model, torch.tensor([[1, 2, 3]]), GREEDY)
    assert got.target_logits[3:].abs().min() > 1e-6
    assert got.rest.abs().max() < 1e-9
    assert got.is_committed.tolist() == [False] * 3 + [True] * 10


@pytest.mark.parametrize(
    ("flags", "wanted"),
    [
        ({"unknown_topk": 7}, 7),
        ({"unknown_topk": 7, "apply_topk_to_unknown": False}, 7),
        ({"unknown_topk": None}, 29),
        ({"unknown_topk": None, "n_unknown_concepts": 67}, 64),
        ({"use_unknown": False}, 0),
    ],
)
def test_how_many_discovered_concepts_are_listed(tmp_path: Path, flags: dict[str, Any], wanted: int) -> None:
    model, _ = checkpoint(tmp_path, seed=1, **flags)
    got = attribute_concepts(model, torch.tensor([[1, 2, 3]]), GREEDY)
    assert got.discovered.ids.shape == got.discovered.contributions.shape == (13, wanted)
    given_number = attribute_concepts(model, torch.tensor([[1, 2, 3]]), GREEDY, num_discovered=2)
    assert given_number.discovered.ids.shape[-1] == min(2, wanted)


def test_a_token_overwritten_by_the_end_of_turn_keeps_its_attribution(tmp_path: Path) -> None:
    model, _ = checkpoint(tmp_path, seed=1)
    plain = attribute_concepts(model, torch.tensor([[1, 2, 3]]), GREEDY)
    commits = plain.generation.commits
    # An end of turn that stands before a token which was committed earlier.
    commit, token = next(
        (commit, commit.tokens[0])
        for number, commit in enumerate(commits)
        if any(pos > commit.positions[0] for earlier in commits[:number] for pos in earlier.positions)
        and not any(commit.tokens[0] in earlier.tokens for earlier in commits[:number])
    )
    ids = ReferenceIds.of(model.config).model_copy(update={"eot_id": token})
    got = attribute_concepts(model, torch.tensor([[1, 2, 3]]), GREEDY, ids=ids)
    overwritten = [
        pos for earlier in got.generation.commits[:-1] for pos in earlier.positions if pos > commit.positions[0]
    ]
    assert overwritten
    for pos in overwritten:
        assert got.generation.tokens[pos] == ids.eos_id
        assert got.target_ids[pos] == plain.target_ids[pos]
        assert torch.equal(got.known.contributions[pos], plain.known.contributions[pos])
    never = ~got.is_committed
    never[:3] = False
    assert (got.steps[~got.is_committed] == -2).all()
    assert not got.known.contributions[~got.is_committed].any()


@pytest.mark.parametrize(
    ("tokens", "wanted"),
    [
        ([5, 6, 0, 7, 8, 0, 9], [(2, 2), (3, 5), (6, 7)]),
        ([5, 6, 1, 0, 0, 2, 0], [(2, 3), (4, 4), (5, 6)]),
        ([5, 6, 1, 0, 4, 4, 0], [(2, 3)]),
        ([5, 6, 1, 2, 4, 4, 0], [(2, 4)]),
        ([5, 6, 4, 1, 0, 2, 0], []),
        ([5, 6], []),
        ([4, 0, 1, 2], [(2, 4)]),
    ],
)
def test_chunks_of_a_row(tokens: list[int], wanted: list[tuple[int, int]]) -> None:
    """0 ends a chunk, 4 the turn; the prompt is the first two tokens."""
    assert chunk_spans(tokens, 2, eoc_id=0, eot_id=4) == wanted


def test_without_an_end_of_turn_id_no_token_ends_the_text() -> None:
    assert chunk_spans([5, 6, 4, 1], 2, eoc_id=0, eot_id=None) == [(2, 4)]


def test_chunk_scores_count_uncommitted_positions(tmp_path: Path) -> None:
    """Scores are means over the chunk's length; the rest in percent is a mean over committed tokens."""
    model, _ = checkpoint(tmp_path, seed=1)
    got = attribute_concepts(model, torch.tensor([[1, 2, 3]]), GREEDY)
    (chunk,) = chunk_attributions(got, eoc_id=99, eot_id=None)
    assert (chunk.start, chunk.stop) == (3, 13)
    half = got.is_committed.clone()
    half[8:] = False
    cut = type(got)(**{**vars(got), "is_committed": half})
    (thinned,) = chunk_attributions(cut, eoc_id=99, eot_id=None)
    mass = got.known.contributions.abs().sum(-1) + got.discovered.contributions.abs().sum(-1) + got.rest.abs()
    shares = got.known.contributions / mass[:, None]
    for scored, stop in ((chunk, 13), (thinned, 8)):
        for kind, concept, score in scored.entries:
            if kind == "known":
                wanted = shares[3:stop][got.known.ids[3:stop] == concept].sum() / 10
                assert score == pytest.approx(float(wanted))
        assert scored.rest_percent == pytest.approx(100 * float((got.rest / mass)[3:stop].mean()))


@pytest.mark.parametrize(
    ("flags", "options"),
    [
        ({"interpretable": False}, GREEDY),
        ({"topk_known": None}, GREEDY),
        ({}, GREEDY.model_copy(update={"cfg_scale": 1.0})),
    ],
)
def test_what_cannot_be_attributed(tmp_path: Path, flags: dict[str, Any], options: ReferenceOptions) -> None:
    model, _ = checkpoint(tmp_path, seed=1, **flags)
    with pytest.raises(ConfigError, match="concept attribution"):
        attribute_concepts(model, torch.tensor([[1, 2, 3]]), options)
