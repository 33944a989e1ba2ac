"""Low-rank adapters: what they change, and that merging them into the weights changes nothing."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from tests.train.bare import short_run, write_bare
from tests.train.test_distributed import _finish as finish
from tests.train.test_distributed import _require_close as require_close
from tests.train.test_distributed import _start as start
from vitrail.artifacts import read_manifest
from vitrail.errors import ConfigError
from vitrail.model import ConceptLM, ModelConfig, init_model, load_config
from vitrail.packed import PackedCorpus
from vitrail.train import LoraSettings, Progress, TrainSettings, train_model
from vitrail.train.adapters import add_adapters, merge_adapters

MATRICES = (".attn.c_attn.weight", ".attn.c_proj.weight", ".mlp.c_fc.weight", ".mlp.c_proj.weight")


def _config(**changes: object) -> ModelConfig:
    values = {
        "vocab_size": 41,
        "num_layers": 2,
        "num_heads": 2,
        "num_kv_heads": 1,
        "width": 12,
        "max_length": 64,
        "block": 4,
        "num_concepts": 7,
        "num_discovered": 19,
        "discovered_rank": 5,
        **dict(zip(("pad_id", "bos_id", "eos_id", "eoc_id", "mask_id"), range(5), strict=True)),
    }
    return ModelConfig.parse(values | changes)


def _stir(model: nn.Module, seed: int) -> None:
    """As if the adapters had been trained."""
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=rng, dtype=torch.float64))


@settings(max_examples=12, deadline=None)
@given(
    rank=st.integers(1, 9),
    alpha=st.floats(0.5, 40.0),
    seed=st.integers(0, 99),
    shape=st.fixed_dictionaries(
        {
            "norm_order": st.sampled_from(["pre", "post"]),
            "backbone": st.sampled_from(["cdlm", "ar"]),
            "mlp_type": st.sampled_from(["swiglu", "standard"]),
            "use_bias": st.booleans(),
            "tie_embeddings": st.booleans(),
            "interpretable": st.booleans(),
        }
    ),
)
def test_the_merged_model_is_the_adapted_one(rank: int, alpha: float, seed: int, shape: dict[str, object]) -> None:
    for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
        model = init_model(_config(**shape), seed).to(dtype)
        names = [name for name, _ in model.named_parameters()]
        ids = torch.randint(5, 41, (3, 14), generator=torch.Generator().manual_seed(seed))
        before = model(ids).logits
        add_adapters(model, LoraSettings(rank=rank, alpha=alpha), seed)
        assert torch.equal(model(ids).logits, before), "untrained adapters change nothing"
        _stir(model, seed)
        adapted = model(ids).logits
        assert (adapted - before).abs().max() > 1e-3, "trained ones do"
        merge_adapters(model)
        assert [name for name, _ in model.named_parameters()] == names
        assert all(parameter.requires_grad for parameter in model.parameters())
        # Logits here are of the order of one.
        assert (model(ids).logits - adapted).abs().max() < tolerance


def test_the_seed_alone_draws_the_adapters(tiny_model: Callable[..., ConceptLM]) -> None:
    drawn = []
    for seed, disturbance in ((0, 1), (0, 2), (1, 1)):
        torch.manual_seed(disturbance)
        model = tiny_model()
        state = torch.get_rng_state()
        add_adapters(model, LoraSettings(rank=3), seed)
        assert torch.equal(torch.get_rng_state(), state)
        drawn.append(torch.cat([p.flatten() for p in model.parameters() if p.requires_grad]))
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


@pytest.mark.parametrize("train_heads", [False, True])
@pytest.mark.parametrize("matrices", ["adamw", "muon"])
def test_only_what_is_adapted_changes(packed_dir: Path, tmp_path: Path, matrices: str, train_heads: bool) -> None:
    """Embeddings, norms, K and U stay to the last bit; the result has the released layout, without adapters."""
    bare = write_bare(tmp_path / "bare", PackedCorpus.open(packed_dir))
    lora = {"rank": 4, "train_heads": train_heads}
    run = short_run(3, lora=lora, optim={"matrices": matrices, "matrix_rate": 0.01})
    train_model(packed_dir, tmp_path / "model", run, init_from=bare)
    before, after = load_file(bare / "model.safetensors"), load_file(tmp_path / "model/model.safetensors")
    assert before.keys() == after.keys()
    moved = {name for name, tensor in after.items() if not torch.equal(tensor, before[name].float())}
    heads = {name for name in before if name.startswith(("known_head.", "unknown_head."))}
    assert moved == {name for name in before if name.endswith(MATRICES)} | (heads if train_heads else set())
    for name in moved - heads:
        change = (after[name] - before[name].float()).double()
        assert int(torch.linalg.matrix_rank(change, rtol=1e-4)) <= 4, "rank 4, up to the rounding of fp32"
    assert load_config(tmp_path / "model") == load_config(bare)
    assert not (tmp_path / "model/training").exists(), "there is no optimiser state of these weights"


def _losses(out: Path) -> list[float]:
    lines = (json.loads(line) for line in (out / "log.jsonl").read_text().splitlines())
    return [line["language"] for line in lines if "batch" in line]


def _adapted_run(steps: int, **changes: object) -> TrainSettings:
    optim = {"matrices": "adamw", "matrix_rate": 0.01}
    return short_run(steps, lora={"rank": 8}, optim=optim, checkpoint_every_steps=3, **changes)


@pytest.fixture(scope="module")
def bare(packed_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its embedding is large, so that what the layers write into the stream, and no more, moves the logits."""
    packed, folder = PackedCorpus.open(packed_dir), tmp_path_factory.mktemp("bare")
    write_bare(folder, packed, backbone="ar", norm_order="pre", dtype=torch.float32)
    weights = load_file(folder / "model.safetensors")
    weights["transformer.tok_emb.weight"] *= 10
    save_file(weights, folder / "model.safetensors")
    return folder


class _StopError(Exception):
    pass


def _stop_at_eight(progress: Progress) -> None:
    if progress.step == 8:
        raise _StopError


def test_the_loss_falls_and_an_interrupted_run_is_the_same(bare: Path, packed_dir: Path, tmp_path: Path) -> None:
    run = _adapted_run(30)
    whole = train_model(packed_dir, tmp_path / "whole", run, init_from=bare)
    losses = _losses(tmp_path / "whole")
    assert sum(losses[-5:]) / 5 < sum(losses[:5]) / 5 - 0.1
    with pytest.raises(_StopError):
        train_model(packed_dir, tmp_path / "broken", run, init_from=bare, on_progress=_stop_at_eight)
    steps: list[int] = []
    again = train_model(
        packed_dir, tmp_path / "broken", run, init_from=bare, on_progress=lambda progress: steps.append(progress.step)
    )
    assert steps[0] == 7, "it went on from the checkpoint of step 6"
    assert (again.id, again.files) == (whole.id, whole.files)


def test_a_merged_model_is_adapted_again_and_trained_in_full(bare: Path, packed_dir: Path, tmp_path: Path) -> None:
    train_model(packed_dir, tmp_path / "first", _adapted_run(2), init_from=bare)
    train_model(packed_dir, tmp_path / "second", _adapted_run(2), init_from=tmp_path / "first")
    train_model(packed_dir, tmp_path / "full", short_run(), init_from=tmp_path / "second")
    assert read_manifest(tmp_path / "full").inputs["init"].id == read_manifest(tmp_path / "second").id


EFFECTLESS: dict[str, tuple[dict[str, object], str]] = {
    "embedding": ({"optim": {"embedding_rate": 0.1}}, r"optim\.embedding_rate 0\.1 has no effect with lora"),
    "norms": ({"optim": {"norm_rate": 0.1}}, r"optim\.norm_rate 0\.1 has no effect with lora"),
    "heads": ({"optim": {"heads": "muon"}}, r"optim\.heads muon has no effect .*set lora\.train_heads true"),
    "term": ({"loss": {"reconstruction": 0.3}}, r"loss\.reconstruction 0\.3 has no effect .*lora\.train_heads true"),
    "form": ({"loss": {"independence_form": "hsic"}}, r"loss\.independence_form hsic has no effect"),
    "dropout": ({"lora": {"dropout": 0.1}}, "dropout"),
    "rank": ({"lora": {"rank": 0}}, "rank"),
}


@pytest.mark.parametrize("name", EFFECTLESS)
def test_settings_without_effect_are_refused(name: str) -> None:
    values, message = EFFECTLESS[name]
    with pytest.raises(ConfigError, match=message) as caught:
        TrainSettings.parse({"lora": {}} | values)
    assert "\n" not in str(caught.value)


def test_settings_with_effect_are_taken() -> None:
    TrainSettings.parse({"lora": {}, "loss": {"reconstruction": 0.0, "independence": 0.0}})
    TrainSettings.parse({"lora": {"train_heads": True}, "loss": {"reconstruction": 0.3}, "optim": {"head_rate": 0.1}})


def test_lora_needs_a_model_heads_and_the_package(
    bare: Path, packed_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="lora adapts a model that is there already; name it with --init-from"):
        train_model(packed_dir, tmp_path / "model", _adapted_run(2))
    plain = write_bare(tmp_path / "plain", PackedCorpus.open(packed_dir), interpretable=False)
    with_heads = short_run(lora={"train_heads": True})
    with pytest.raises(ConfigError, match=r"lora\.train_heads has no effect on a model without concept heads"):
        train_model(packed_dir, tmp_path / "model", with_heads, init_from=plain)
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ConfigError, match=r"needs the package peft: pip install 'vitrail\[lora\]'"):
        train_model(packed_dir, tmp_path / "model", _adapted_run(2), init_from=bare)
    assert not (tmp_path / "model").exists()


def test_two_processes_adapt_like_one(bare: Path, packed_dir: Path, tmp_path: Path) -> None:
    """Adapters in shards, merged while they are."""
    config = tmp_path / "lora.json"
    config.write_text(json.dumps(_adapted_run(6).model_dump(mode="json")))
    weights: list[dict[str, Tensor]] = []
    for ranks in (1, 2):
        code, said = finish(start(ranks, config, packed_dir, tmp_path / str(ranks), "--init-from", str(bare)))
        assert code == 0, said
        weights.append(load_file(tmp_path / str(ranks) / "model.safetensors"))
    require_close(*weights)
