"""`vitrail.load`: released checkpoints, bare or complete, here or in the Hub's cache; one line says what is missing."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import vitrail
from tests.model.shapes import FLAGS, small_config
from vitrail.api import choose_dtype
from vitrail.errors import ArtifactError, CheckpointError, ConfigError
from vitrail.model import ModelConfig, SdpaKernel, StoredTensors, init_model, load_config, load_model, save_model
from vitrail.text import train_tokenizer

GOLDEN = Path(__file__).parent / "golden" / "a1"
SHARED = os.environ.get("VITRAIL_SHARED")
TEXT = "the economy of the island rests on fish, salt and sheep; the island exports wool. " * 40


def golden_sets() -> list[Path]:
    shared = [] if SHARED is None else sorted((Path(SHARED) / "fixtures" / "steerling_ref").glob("*/forward.npz"))
    return [GOLDEN, *(path.parent for path in shared)]


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A released checkpoint with nothing beside it."""
    directory = tmp_path / "bare"
    save_model(init_model(small_config(), 0), directory)
    return directory


def write_labels(path: Path, rows: list[dict[str, Any]]) -> None:
    pq.write_table(pa.Table.from_pylist(rows), path)


def label(concept_id: int, head: str, name: str | None, **more: Any) -> dict[str, Any]:
    values = {"concept_description": f"about {name}", "group_name": "N/A", "is_tone": False, "is_alignment": False}
    return {"concept_id": concept_id, "head": head, "concept_name": name} | values | more


@pytest.mark.parametrize("golden", golden_sets(), ids=lambda path: path.name)
def test_a_bare_release_gives_the_numbers_of_the_reference(golden: Path) -> None:
    """fp32 to 1e-4, the order of summation; ids exactly (see tests/model/test_golden.py for every array)."""
    wanted = np.load(golden / "forward.npz")
    model = vitrail.load(golden / "checkpoint", device="cpu")
    out = model(torch.from_numpy(wanted["input_ids"]).long())
    assert np.abs(out.logits.numpy() - wanted["logits"]).max() < 1e-4
    assert (out.known_ids.numpy() == wanted["known_topk_indices"]).all()


def test_flat_and_nested_configurations_are_one(tmp_path: Path) -> None:
    shutil.copyfile(GOLDEN / "checkpoint" / "model.safetensors", tmp_path / "weights.safetensors")
    shutil.copyfile(GOLDEN / "checkpoint_nested_config" / "config.json", tmp_path / "config.json")
    nested, flat = vitrail.load(tmp_path, device="cpu"), vitrail.load(GOLDEN / "checkpoint", device="cpu")
    ids = torch.arange(13)[None]
    assert torch.equal(nested(ids).logits, flat(ids).logits)
    assert nested.model_id == flat.model_id


def test_without_a_tokenizer_ids_work_and_text_says_what_is_missing(bare: Path) -> None:
    model = vitrail.load(bare, device="cpu")
    assert model(torch.tensor([[1, 2, 3]])).logits.shape == (1, 3, 37)
    with pytest.raises(ArtifactError, match="no tokenizer; put its tokenizer"):
        model.generate("a word")
    with pytest.raises(ArtifactError, match="no tokenizer"):
        vitrail.load(bare, device="cpu", needs_text=True)


def test_without_a_calibration_steering_says_how_to_make_one(bare: Path) -> None:
    with pytest.raises(ArtifactError, match="no calibration; run `vitrail steer calibrate"):
        vitrail.load(bare, device="cpu").plan("#3=+1.0")


def test_without_labels_concepts_are_numbered(bare: Path) -> None:
    library = vitrail.load(bare, device="cpu").library
    assert [library.card("known", 12).name, library.card("discovered", 5).name] == ["#12", "discovered:#5"]
    assert library.find("#12").concept_id == 12
    assert len(library.cards) == 13 + 29


def test_labels_count_over_both_heads(bare: Path) -> None:
    rows = [
        label(0, "known", "fishing", group_name="trade"),
        label(12, "known", "rude", is_tone=True),
        label(13, "unknown", "found 0"),
        label(13 + 28, "unknown", "found 28"),
        label(4, "known", None),
    ]
    write_labels(bare / "concept_labels.parquet", rows)
    library = vitrail.load(bare, device="cpu").library
    assert [library.find("Fishing").concept_id, library.find("rude").kind] == [0, "tone"]
    assert [library.find("fishing").path, library.find("rude").path] == [("trade",), ()]
    assert library.card("discovered", 0).name == "found 0"
    assert library.card("discovered", 28).name == "found 28"
    assert library.card("known", 4).name == "#4"
    assert library.card("discovered", 1).name == "discovered:#1"


def test_labels_from_elsewhere(bare: Path, tmp_path: Path) -> None:
    file = tmp_path / "names.parquet"
    write_labels(file, [label(1, "known", "wool")])
    library = vitrail.load(bare, device="cpu", labels=file).library
    library.save(tmp_path / "concepts.parquet")
    assert vitrail.load(bare, device="cpu", labels=tmp_path / "concepts.parquet").library.find("wool").concept_id == 1


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([label(13, "known", "x")], "concept 13 cannot be known in a model of 13 known and 29 discovered"),
        ([label(42, "unknown", "x")], "concept 42 cannot be discovered"),
        ([label(3, "unknown", "x")], "concept 3 cannot be discovered"),
        ([label(3, "else", "x")], "unknown head 'else'"),
        ([label(3, "known", "x"), label(3, "known", "y")], "names one concept twice"),
        ([{"concept_name": "x", "head": "known"}], "no column 'concept_id'"),
    ],
    ids=["known", "beyond", "below", "head", "twice", "column"],
)
def test_wrong_labels_are_refused(bare: Path, rows: list[dict[str, Any]], message: str) -> None:
    write_labels(bare / "concept_labels.parquet", rows)
    with pytest.raises(ArtifactError, match=message):
        vitrail.load(bare, device="cpu")


def test_a_file_of_labels_that_is_not_there(bare: Path) -> None:
    with pytest.raises(ArtifactError, match=r"nothing\.parquet"):
        vitrail.load(bare, device="cpu", labels=bare / "nothing.parquet")


def test_a_tokenizer_of_another_vocabulary_is_refused(tmp_path: Path) -> None:
    tokenizer = train_tokenizer([TEXT], 300)
    config = small_config(vocab_size=290, pad_id=0, bos_id=1, eos_id=2, eoc_id=3, mask_id=4)
    save_model(init_model(config, 0), tmp_path)
    tokenizer.save(tmp_path)
    with pytest.raises(ArtifactError, match=r"tokenizer\.json"):
        vitrail.load(tmp_path, device="cpu")


def test_a_tokenizer_beside_the_weights_is_found(tmp_path: Path) -> None:
    tokenizer = train_tokenizer([TEXT], 300)
    ids = {"pad_id": 0, "bos_id": 1, "eos_id": 2, "eoc_id": 3, "mask_id": 4}
    save_model(init_model(small_config(vocab_size=tokenizer.vocab_size + 3, **ids), 0), tmp_path)
    tokenizer.save(tmp_path)
    model = vitrail.load(tmp_path, device="cpu", needs_text=True)
    assert model.tokenizer.encode("the island") == tokenizer.encode("the island")


# Dtypes.


@settings(max_examples=8, deadline=None)
@given(flags=FLAGS)
def test_bf16_on_the_cpu_is_near_fp32(flags: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> None:
    """Eight bits of mantissa: rounding of 2 layers stays within 5 % of the norm of the hidden states."""
    directory = tmp_path_factory.mktemp("model")
    save_model(init_model(small_config(**flags), 0), directory)
    ids = torch.randint(37, (2, 11), generator=torch.Generator().manual_seed(0))
    outputs = [vitrail.load(directory, device="cpu", dtype=name)(ids) for name in ("float32", "bfloat16")]
    assert outputs[1].logits.dtype == torch.bfloat16
    error = (outputs[1].hidden.float() - outputs[0].hidden).norm() / outputs[0].hidden.norm()
    assert error < 0.05
    assert outputs[1].logits.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_auto_keeps_what_is_stored(tmp_path: Path, dtype: torch.dtype) -> None:
    save_model(init_model(small_config(), 0).to(dtype), tmp_path)
    assert vitrail.load(tmp_path, device="cpu").network.transformer.lm_head.weight.dtype == dtype


def test_half_precision_is_widened_on_the_cpu_and_refused_where_asked_for(tmp_path: Path) -> None:
    save_model(init_model(small_config(), 0).half(), tmp_path)
    assert vitrail.load(tmp_path, device="cpu").network.transformer.lm_head.weight.dtype == torch.float32
    with pytest.raises(ConfigError, match="dtype 'float16' cannot be used on cpu"):
        vitrail.load(tmp_path, device="cpu", dtype="float16")


@pytest.mark.parametrize("name", ["float8", "", "complex64"])
def test_an_unknown_dtype_names_the_known_ones(name: str) -> None:
    with pytest.raises(ConfigError, match="is not one of auto, int8, float32"):
        choose_dtype(name, torch.device("cpu"))


def test_int8_keeps_the_logits_near() -> None:
    """On the tiny golden model: centred logits within 3 % of their norm (a trained one: docs/checkpoints.md)."""
    ids = torch.from_numpy(np.load(GOLDEN / "forward.npz")["input_ids"]).long()
    wanted = vitrail.load(GOLDEN / "checkpoint", device="cpu")(ids).logits
    found = vitrail.load(GOLDEN / "checkpoint", device="cpu", dtype="int8")(ids).logits
    wanted, found = (x - x.mean(-1, keepdim=True) for x in (wanted, found))
    assert 0 < (found - wanted).norm() / wanted.norm() < 0.03


def test_the_kernel_is_an_argument(bare: Path) -> None:
    assert isinstance(vitrail.load(bare, device="cpu").network.transformer.kernel, SdpaKernel)


@pytest.mark.skipif(torch.cuda.is_available(), reason="flex attention works here")
def test_flex_attention_without_cuda_is_refused(bare: Path) -> None:
    with pytest.raises(ConfigError, match="attention 'flex' needs a CUDA device"):
        vitrail.load(bare, device="cpu", attention="flex")


# Ids.


def test_the_id_names_the_weights_and_not_their_files(bare: Path, tmp_path: Path) -> None:
    save_model(load_model(bare), tmp_path / "sharded", max_shard_bytes=2000)
    assert len(list((tmp_path / "sharded").glob("*.safetensors"))) > 2
    first, second = vitrail.load(bare, device="cpu"), vitrail.load(tmp_path / "sharded", device="cpu")
    assert first.model_id == second.model_id


@settings(max_examples=15, deadline=None)
@given(place=st.integers(0, 10**6), seed=st.integers(0, 3))
def test_the_id_sees_any_change_of_a_small_tensor(
    place: int, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("model")
    model = init_model(small_config(), seed)
    save_model(model, directory)
    before = StoredTensors(directory).fingerprint
    weights = list(model.parameters())
    weight = weights[place % len(weights)].detach().view(-1)
    weight[place % len(weight)] += 0.5
    save_model(model, directory)
    assert StoredTensors(directory).fingerprint != before


@pytest.mark.parametrize(
    "change",
    [lambda c: c | {"n_head": 1}, lambda c: c | {"clip_qkv": 2.5}, lambda c: c | {"norm_order": "pre"}],
    ids=["heads", "clip", "order"],
)
def test_the_id_sees_the_configuration(bare: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    before = vitrail.load(bare, device="cpu").model_id
    config = json.loads((bare / "config.json").read_text())
    (bare / "config.json").write_text(json.dumps(change(config) | {"n_kv_heads": 1, "use_qk_norm": True}))
    if load_config(bare).head_width != small_config().head_width:
        with pytest.raises(CheckpointError, match="has shape"):
            vitrail.load(bare, device="cpu")
    else:
        assert vitrail.load(bare, device="cpu").model_id != before


# The Hub.


@pytest.fixture
def hub_cache(bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the Hub with one repository, and no way out."""
    from huggingface_hub import constants

    cache = tmp_path / "cache"
    repository = cache / "models--someone--tiny"
    commit = "0123456789abcdef0123456789abcdef01234567"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(commit)
    shutil.copytree(bare, repository / "snapshots" / commit)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    return repository / "snapshots" / commit


def test_a_repository_comes_from_the_cache(hub_cache: Path, bare: Path) -> None:
    model = vitrail.load("someone/tiny", device="cpu")
    assert model.directory == hub_cache
    assert model.model_id == vitrail.load(bare, device="cpu").model_id
    assert vitrail.load("someone/tiny", device="cpu", revision=hub_cache.name).model_id == model.model_id


@pytest.mark.parametrize("name", ["someone/else", "someone/tiny"])
def test_a_repository_that_is_not_whole_in_the_cache_cannot_be_had_offline(hub_cache: Path, name: str) -> None:
    (hub_cache / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=f"{name}: no such directory, and the Hugging Face Hub cannot give it"):
        vitrail.load(name, device="cpu")


def test_a_revision_of_a_directory_is_refused(bare: Path) -> None:
    with pytest.raises(ConfigError, match="a directory has no revision 'main'"):
        vitrail.load(bare, device="cpu", revision="main")


@pytest.mark.parametrize("name", ["nothing", "./some/thing", "a/b/c", "/nothing/here", "tests/nothing"])
def test_a_missing_directory_is_no_repository(name: str) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json"):
        vitrail.load(name, device="cpu")


def test_a_plain_model_has_no_concepts(tmp_path: Path) -> None:
    save_model(init_model(small_config(interpretable=False), 0), tmp_path)
    model = vitrail.load(tmp_path, device="cpu")
    assert model.library.cards == ()
    assert model(torch.tensor([[1, 2]])).known_ids.shape[-1] == 0


def test_defaults_are_those_of_the_released_base_model() -> None:
    """8,391,778,304 parameters in 264 tensors, as counted on the published checkpoint."""
    from vitrail.model import empty_model

    model = empty_model(ModelConfig())
    assert sum(parameter.numel() for parameter in model.parameters()) == 8_391_778_304
    assert len(list(model.parameters())) == 264
