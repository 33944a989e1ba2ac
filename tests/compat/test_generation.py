"""What the reference's generation does beyond the recorded runs: batches, schedules, refusals."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.compat.checkpoints import EOS, FLAG_SETS, MASK, PAD, checkpoint
from vitrail.compat import (
    Commit,
    ReferenceIds,
    ReferenceOptions,
    ReferenceSteering,
    generate_like_reference,
    read_ids,
    read_options,
    reference_generation,
)
from vitrail.errors import ConceptNotFound, ConfigError
from vitrail.model import ConceptLM, Injection, ModelConfig, init_model


def greedy(**changes: Any) -> ReferenceOptions:
    values: dict[str, Any] = {"max_new_tokens": 10, "use_entropy_sampling": False, "top_p": 0.0}
    return ReferenceOptions(**(values | changes))


@pytest.fixture
def model(tmp_path: Path) -> ConceptLM:
    """Blocks of 5, fp64, without an end-of-turn token."""
    return checkpoint(tmp_path, seed=1)[0]


@dataclass(frozen=True)
class Holder:
    """Stands where `vitrail.load` gives a model with its tokenizer and library."""

    network: ConceptLM


@contextmanager
def forwards(model: ConceptLM) -> Iterator[list[tuple[Tensor, Injection | None]]]:
    """Input and injection of every forward of the model."""
    seen: list[tuple[Tensor, Injection | None]] = []

    def note(_module: Any, args: tuple[Tensor, ...], kwargs: dict[str, Any]) -> None:
        seen.append((args[0].clone(), kwargs["injection"]))

    handle = model.register_forward_pre_hook(note, with_kwargs=True)
    yield seen
    handle.remove()


def test_what_load_returns_is_taken_too(model: ConceptLM) -> None:
    run = {"prompt": [3, 4, 5], "generation": {"max_new_tokens": 10, "seed": 3}}
    assert generate_like_reference(Holder(model), run) == generate_like_reference(model, run)


def test_absent_and_null_keys_keep_the_defaults(model: ConceptLM) -> None:
    assert read_options({"generation": {"steps": None, "stop_tokens": None}}) == ReferenceOptions()
    assert read_options({}) == ReferenceOptions()
    assert read_ids({"special_ids": None}, model.config) == ReferenceIds.of(model.config)


def test_a_null_end_of_turn_id_is_none_and_an_absent_one_the_configuration_s() -> None:
    config = ModelConfig(eot_id=7)
    assert read_ids({"special_ids": {"eot_id": None}}, config).eot_id is None
    assert read_ids({"special_ids": {"mask_token_id": None}}, config).eot_id == 7
    assert read_ids({"special_ids": {"mask_token_id": None}}, config).mask_id == config.mask_id


@pytest.mark.parametrize(
    ("run", "message"),
    [
        ({"prompt": [1], "generation": {"max_new_token": 5}}, "did you mean 'max_new_tokens'"),
        ({"prompt": [1], "steering": {"concept_id": [1]}}, "did you mean 'concept_ids'"),
        ({"prompt": [1], "special_ids": {"eos_id": 1}}, "did you mean .*'eos_token_id'"),
        ({"prompt": [1], "generation": {"max_new_tokens": 7}}, "not a multiple of the block 5"),
        ({"prompt": [1], "generation": {"max_new_tokens": 10, "steps": 3}}, "not a multiple of the 2 blocks"),
        ({"prompt": "text"}, "'prompt' must be a list of token ids"),
        ({}, "'prompt' must be a list of token ids"),
    ],
)
def test_what_the_reference_would_refuse(model: ConceptLM, run: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        generate_like_reference(model, run)


def test_steering_by_a_concept_that_is_not_there(model: ConceptLM) -> None:
    with pytest.raises(ConceptNotFound, match="no known concept 13; its ids are 0 to 12"):
        generate_like_reference(model, {"prompt": [1], "steering": {"concept_ids": [13], "mai_lm_target": 1.0}})


def test_an_autoregressive_model_is_refused() -> None:
    config = ModelConfig(**(_TINY | {"backbone": "ar"}))
    with torch.device("meta"):
        model = ConceptLM(config)
    with pytest.raises(ConfigError, match="autoregressive"):
        reference_generation(model, torch.zeros(1, 1, dtype=torch.long), greedy())


@settings(max_examples=5, deadline=None)
@given(flags=FLAG_SETS, seed=st.integers(0, 99), length=st.integers(0, 7))
def test_every_position_is_filled_and_no_control_token_is_chosen(
    tmp_path_factory: pytest.TempPathFactory, flags: dict[str, Any], seed: int, length: int
) -> None:
    model, _ = checkpoint(tmp_path_factory.mktemp("model"), seed, **flags)
    prompt = torch.arange(2 * length).view(2, length)
    got = reference_generation(model, prompt, ReferenceOptions(max_new_tokens=10, seed=seed))
    assert torch.equal(got.rows[:, :length], prompt)
    assert not torch.isin(got.rows[:, length:], torch.tensor([EOS, MASK, PAD])).any()
    filled = sorted((commit.row, pos) for commit in got.commits for pos in commit.positions)
    assert filled == [(row, pos) for row in range(2) for pos in range(length, length + 10)]


@settings(max_examples=5, deadline=None)
@given(flags=FLAG_SETS, seed=st.integers(0, 99), steps=st.sampled_from([None, 2, 4, 14]))
def test_rows_of_a_batch_are_as_alone(
    tmp_path_factory: pytest.TempPathFactory, flags: dict[str, Any], seed: int, steps: int | None
) -> None:
    """Greedy and in fp64; without positions the masked ones of a block are tied, and their order is anyone's."""
    model, _ = checkpoint(tmp_path_factory.mktemp("model"), seed, **(flags | {"use_rope": True}))
    prompt = torch.tensor([[1, 2, 3, 4], [9, 8, 7, 6]])
    together = reference_generation(model, prompt, greedy(steps=steps))
    for row in range(2):
        alone = reference_generation(model, prompt[row : row + 1], greedy(steps=steps))
        assert torch.equal(together.rows[row], alone.rows[0])


def test_steps_without_commits_still_run_and_count(model: ConceptLM) -> None:
    with forwards(model) as seen:
        got = reference_generation(model, torch.tensor([[1, 2]]), greedy(steps=14))
    assert len(seen) == 14
    assert [commit.step for commit in got.commits] == [0, 1, 2, 3, 4, 7, 8, 9, 10, 11]


def test_early_steps_take_what_does_not_divide(model: ConceptLM) -> None:
    got = reference_generation(model, torch.tensor([[1, 2]]), greedy(steps=4))
    assert [len(commit.positions) for commit in got.commits] == [3, 2, 3, 2]


def test_a_mask_in_the_prompt_stays(model: ConceptLM) -> None:
    got = reference_generation(model, torch.tensor([[1, MASK, 2]]), greedy())
    assert got.tokens[:3] == [1, MASK, 2]
    assert MASK not in got.tokens[3:]


def test_an_end_of_turn_in_one_row_ends_all_rows(model: ConceptLM) -> None:
    """The row that chose it is filled with EOS behind it; what is still masked stays masked, in both rows."""
    prompt = torch.tensor([[1, 2, 3, 4], [9, 8, 7, 6]])
    whole = reference_generation(model, prompt, greedy())
    commit = next(
        commit
        for number, commit in enumerate(whole.commits)
        if commit.row == 0
        and commit.step
        and not any(commit.tokens[0] in other.tokens for other in whole.commits[:number])
    )
    ids = ReferenceIds.of(model.config).model_copy(update={"eot_id": commit.tokens[0]})
    got = reference_generation(model, prompt, greedy(), ids=ids)
    assert got.commits[-1] == commit
    end = commit.positions[0]
    assert got.tokens[end] == commit.tokens[0]
    assert set(got.tokens[end + 1 :]) <= {EOS}
    assert sum(token != MASK for token in got.tokens[4:end]) == sum(
        pos < end for other in got.commits if other.row == 0 for pos in other.positions
    )
    assert int((got.rows[1] == MASK).sum()) == 10 - commit.step, "the other row went on"


def test_a_stop_token_ends_the_generation_after_its_block(model: ConceptLM) -> None:
    whole = reference_generation(model, torch.tensor([[1, 2]]), greedy(max_new_tokens=15))
    stop = whole.tokens[3]
    got = reference_generation(model, torch.tensor([[1, 2]]), greedy(max_new_tokens=15, stop_tokens=(stop,)))
    assert got.tokens == [*whole.tokens[:7], *[MASK] * 10]
    assert list(got.text_ids) == whole.tokens[2 : whole.tokens.index(stop, 2)]


def test_a_cutoff_counts_the_masks_of_the_whole_batch(model: ConceptLM) -> None:
    """Of one row, N minus its masks; of two rows, N minus the masks of both."""
    steering = ReferenceSteering(concept_ids=(1,), target=2.0, schedule="hard_cutoff", cutoff_tokens=2)
    injected = []
    for prompt in ([[1, 2]], [[1, 2], [3, 4]]):
        with forwards(model) as seen:
            reference_generation(model, torch.tensor(prompt), greedy(max_new_tokens=5), steering=steering)
        injected.append([injection is not None for _, injection in seen])
    assert injected == [[True, True, False, False, False], [True, True, True, True, False]]


def test_injection_reaches_every_mask_of_the_row(model: ConceptLM) -> None:
    steering = ReferenceSteering(concept_ids=(1,), target=2.0)
    with forwards(model) as seen:
        reference_generation(model, torch.tensor([[1, MASK, 2]]), greedy(cfg_scale=1.0), steering=steering)
    assert len(seen) == 20
    for input_ids, injection in seen:
        assert injection is not None
        assert torch.equal(injection.mask, input_ids == MASK)
        assert injection.layer == 1


def test_guidance_masks_the_prompt_and_calls_no_hook(model: ConceptLM) -> None:
    calls: list[Commit] = []
    with forwards(model) as seen:
        got = reference_generation(
            model,
            torch.tensor([[1, MASK, 2]]),
            greedy(cfg_scale=1.0),
            on_commit=lambda commit, _output: calls.append(commit),
        )
    for (conditional, _), (blind, _) in zip(seen[::2], seen[1::2], strict=True):
        assert blind[0, :3].tolist() == [MASK] * 3
        assert torch.equal(blind[:, 3:], conditional[:, 3:])
    assert calls == []
    assert len(got.commits) == 10


def test_a_plain_backbone_generates_without_the_hook(tmp_path: Path) -> None:
    model, _ = checkpoint(tmp_path, seed=1, interpretable=False)
    calls: list[Commit] = []
    got = reference_generation(
        model, torch.tensor([[1]]), greedy(), on_commit=lambda commit, _output: calls.append(commit)
    )
    assert len(got.commits) == 10
    assert calls == []


def test_a_seed_fixes_the_draws_and_none_takes_the_global_stream(model: ConceptLM) -> None:
    prompt, sampled = torch.tensor([[1, 2]]), greedy(temperature=3.0, top_p=1.0)
    first, again, other = (
        reference_generation(model, prompt, sampled.model_copy(update={"seed": seed})).tokens for seed in (5, 5, 6)
    )
    assert first == again != other
    with torch.random.fork_rng():
        torch.manual_seed(5)
        assert reference_generation(model, prompt, sampled).tokens == first


@pytest.mark.parametrize("shift", [-1.0, 1.0])
@torch.no_grad()
def test_a_repeated_token_is_penalised_once_and_by_its_sign(shift: float) -> None:
    """The penalty divides a positive logit and multiplies a negative one, for ids anywhere in the row."""
    model = init_model(ModelConfig(**(_TINY | {"use_rms_norm": False, "tie_embeddings": False})), seed=0)
    # All logits far on one side of zero, so that the sign of the best one is known.
    model.transformer.ln_f.get_parameter("bias").fill_(3.0)
    model.transformer.lm_head.weight.mul_(20).add_(shift)
    seen: list[Tensor] = []
    got = reference_generation(
        model,
        torch.tensor([[1, 1, 2]]),
        greedy(max_new_tokens=8, repetition_penalty=3.0),
        on_commit=lambda _commit, output: seen.append(output.logits[0]),
    )
    row = torch.tensor([1, 1, 2, *[10] * 8])
    for commit, logits in zip(got.commits, seen, strict=True):
        (pos,), (token,) = commit.positions, commit.tokens
        scores = logits[pos].clone()
        assert (scores * shift > 0).all()
        repeated = torch.tensor(sorted(set(row.tolist())))
        scores[repeated] = scores[repeated] / 3 if shift > 0 else scores[repeated] * 3
        scores[[8, 9, 10]] = -torch.inf
        assert token == int(scores.argmax())
        row[pos] = token


_TINY: dict[str, Any] = {
    "vocab_size": 11,
    "num_layers": 1,
    "num_heads": 1,
    "num_kv_heads": 1,
    "width": 6,
    "block": 2,
    "pad_id": 8,
    "bos_id": 7,
    "eos_id": 9,
    "mask_id": 10,
    "eoc_id": 6,
    "num_concepts": 3,
    "num_discovered": 5,
    "discovered_rank": 2,
}
