"""The loop: interrupted = uninterrupted, NaN stops it, micro-batches and observers change nothing."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from vitrail.errors import CheckpointError, RunFailed
from vitrail.model import ConceptLM
from vitrail.packed import PackedCorpus
from vitrail.train.distributed import Root
from vitrail.train.loop import OnProgress, Progress, num_steps, train
from vitrail.train.optim import Optimisers
from vitrail.train.settings import HeldoutSettings, SteeringSettings, TrainSettings
from vitrail.train.state import latest_checkpoint, load_checkpoint

Model = Callable[..., ConceptLM]
STEPS = 12


def _settings(*, steering: bool = False, every: int = 5, micro: int | None = None) -> TrainSettings:
    return TrainSettings(
        total_tokens=STEPS * 5 * 14,
        batch_size=5,
        micro_batch=micro,
        precision="fp32",
        checkpoint_every_steps=every,
        heldout=HeldoutSettings(every_steps=4, sequences=5, steering_concepts=3 if steering else 0),
        steering=SteeringSettings(recalibrate_steps=3) if steering else None,
    )


@pytest.fixture(autouse=True)
def _lifted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tiny corpus has no tokenizer to count tokens with: three fixed tokens stand for each concept."""
    table = torch.arange(10, 17)[:, None] + torch.arange(3)
    for module in ("loop", "evaluation"):
        monkeypatch.setattr(f"vitrail.train.{module}.lifted_tokens", lambda packed, num, limit: table)


class _InterruptError(Exception):
    pass


def _train(
    model: ConceptLM, packed: PackedCorpus, settings: TrainSettings, work: Path, on_progress: OnProgress | None = None
) -> None:
    train(Root(model), Optimisers(model, settings.optim), packed, settings, work, on_progress=on_progress)


def _run(
    model: ConceptLM, packed: PackedCorpus, settings: TrainSettings, work: Path, stop_at: int | None = None
) -> list[Progress]:
    seen: list[Progress] = []

    def observe(progress: Progress) -> None:
        seen.append(progress)
        if progress.step == stop_at:
            raise _InterruptError

    _train(model, packed, settings, work, observe)
    return seen


@pytest.mark.parametrize("steering", [False, True])
@pytest.mark.parametrize("stop_at", [3, 7])
def test_interrupted_is_uninterrupted_bit_for_bit(
    steering: bool, stop_at: int, tiny_model: Model, tiny_packed: PackedCorpus, tmp_path: Path
) -> None:
    settings = _settings(steering=steering)
    whole = tiny_model(dtype=torch.float32)
    _run(whole, tiny_packed, settings, tmp_path / "whole")
    broken = tiny_model(dtype=torch.float32)
    with pytest.raises(_InterruptError):
        _run(broken, tiny_packed, settings, tmp_path / "broken", stop_at)
    resumed = tiny_model(dtype=torch.float32)
    seen = _run(resumed, tiny_packed, settings, tmp_path / "broken")
    assert seen[0].step == (1 if stop_at < 5 else 6), "it goes on from the last checkpoint"
    for name, parameter in whole.named_parameters():
        assert torch.equal(parameter, dict(resumed.named_parameters())[name]), name
    assert (tmp_path / "whole/log.jsonl").read_bytes() == (tmp_path / "broken/log.jsonl").read_bytes()


def test_training_lowers_the_loss_and_reports(tiny_model: Model, tiny_packed: PackedCorpus, tmp_path: Path) -> None:
    seen = _run(tiny_model(dtype=torch.float32), tiny_packed, _settings(), tmp_path)
    assert [progress.step for progress in seen] == list(range(1, STEPS + 1))
    assert seen[-1].remaining_s == 0.0
    assert seen[-1].tokens == STEPS * 5 * 14
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    heldout = [line["heldout"] for line in lines if "heldout" in line]
    assert len(heldout) == 3
    assert heldout[-1]["loss"] < heldout[0]["loss"]
    parts = heldout[-1]["contribution_known"] + heldout[-1]["contribution_discovered"]
    assert 0 < parts < 1


def test_micro_batches_end_at_the_same_model(tiny_model: Model, tiny_packed: PackedCorpus, tmp_path: Path) -> None:
    models = []
    for micro in (None, 2):
        models.append(tiny_model())
        _run(models[-1], tiny_packed, _settings(steering=True, micro=micro), tmp_path / str(micro))
    for first, second in zip(models[0].parameters(), models[1].parameters(), strict=True):
        # Muon orthogonalises in bf16, where a difference of 1e-16 can be rounded to one of 1e-3.
        torch.testing.assert_close(first, second, rtol=1e-2, atol=1e-2)


def test_a_loss_that_is_not_a_number_stops_the_run_and_keeps_the_checkpoint(
    tiny_model: Model, tiny_packed: PackedCorpus, tmp_path: Path
) -> None:
    model = tiny_model(dtype=torch.float32)

    def poison(progress: Progress) -> None:
        if progress.step == 7:
            model.transformer.tok_emb.weight.data[9] = torch.nan

    with pytest.raises(RunFailed, match=r"step 7: language.*is not a number.*step-00000005"):
        _train(model, tiny_packed, _settings(), tmp_path, poison)
    fresh = tiny_model(dtype=torch.float32)
    folder = latest_checkpoint(tmp_path)
    assert folder is not None
    assert load_checkpoint(folder, fresh, Optimisers(fresh, _settings().optim)).step == 5
    assert all(bool(torch.isfinite(p).all()) for p in fresh.parameters())


def test_damaged_and_foreign_states_are_refused(tiny_model: Model, tiny_packed: PackedCorpus, tmp_path: Path) -> None:
    _run(tiny_model(dtype=torch.float32), tiny_packed, _settings(), tmp_path)
    folder = latest_checkpoint(tmp_path)
    assert folder is not None
    other = tiny_model(dtype=torch.float32, num_layers=1)
    with pytest.raises(CheckpointError, match="another model"):
        load_checkpoint(folder, other, Optimisers(other, _settings().optim))
    (shard,) = folder.glob("*.safetensors")
    data = shard.read_bytes()
    shard.write_bytes(data[: len(data) // 2])
    model = tiny_model(dtype=torch.float32)
    with pytest.raises(CheckpointError, match="damaged training state"):
        load_checkpoint(folder, model, Optimisers(model, _settings().optim))
    shard.unlink()
    with pytest.raises(CheckpointError, match="no shard is there"):
        load_checkpoint(folder, model, Optimisers(model, _settings().optim))


def test_a_checkpoint_of_another_run_and_a_torn_log_are_refused(
    tiny_model: Model, tiny_packed: PackedCorpus, tmp_path: Path
) -> None:
    def run(name: str) -> None:
        model = tiny_model(dtype=torch.float32)
        optimisers = Optimisers(model, _settings().optim)
        train(Root(model), optimisers, tiny_packed, _settings(), tmp_path, name=name)

    run("one")
    with pytest.raises(CheckpointError, match="of another run; remove it"):
        run("other")
    folder = latest_checkpoint(tmp_path)
    assert folder is not None
    (tmp_path / "log.jsonl").write_text("")
    with pytest.raises(CheckpointError, match=r"log\.jsonl: damaged \(0 bytes"):
        run("one")
    (folder / "state.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"state\.json: damaged \(log_bytes is missing\)"):
        run("one")
    (tmp_path / "latest.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"latest\.json: damaged"):
        run("one")


def test_a_checkpoint_with_weights_that_are_not_finite_is_damaged(
    tiny_model: Model, tiny_packed: PackedCorpus, tmp_path: Path
) -> None:
    _run(tiny_model(dtype=torch.float32), tiny_packed, _settings(), tmp_path)
    folder = latest_checkpoint(tmp_path)
    assert folder is not None
    (shard,) = folder.glob("*.safetensors")
    data = shard.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    name = next(name for name in header if name.startswith("model/"))
    at = 8 + size + header[name]["data_offsets"][0]
    shard.write_bytes(data[:at] + b"\xff" * 4 + data[at + 4 :])
    model = tiny_model(dtype=torch.float32)
    with pytest.raises(CheckpointError, match="is not finite"):
        load_checkpoint(folder, model, Optimisers(model, _settings().optim))


def test_bf16_runs_and_keeps_fp32_weights(tiny_model: Model, tiny_packed: PackedCorpus, tmp_path: Path) -> None:
    model = tiny_model(dtype=torch.float32)
    settings = _settings().model_copy(update={"precision": "bf16"})
    _run(model, tiny_packed, settings, tmp_path)
    assert {p.dtype for p in model.parameters()} == {torch.float32}


def test_a_corpus_without_held_out_sequences_trains(
    tiny_model: Model, tmp_path: Path, tiny_packed: PackedCorpus
) -> None:
    tiny_packed.sizes["heldout"] = 0  # type: ignore[attr-defined]
    _run(tiny_model(dtype=torch.float32), tiny_packed, _settings(), tmp_path)


def test_number_of_steps() -> None:
    assert num_steps(TrainSettings(total_tokens=10_000, batch_size=4), 250) == 10
    assert num_steps(TrainSettings(total_tokens=1), 250) == 1
