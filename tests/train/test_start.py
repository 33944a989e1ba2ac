"""Any checkpoint in the released layout can be continued, where it fits the corpus; what does not fit is named."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import vitrail
from tests.train.bare import short_run, still_run, write_bare
from vitrail.artifacts import lineage
from vitrail.atlas import ConceptLibrary, numbered_library
from vitrail.errors import ArtifactError, CheckpointError, ConfigError
from vitrail.model import load_config
from vitrail.packed import PackedCorpus
from vitrail.train import train_model
from vitrail.train.start import origin_id, run_library

KINDS: dict[str, dict[str, object]] = {
    "as released": {"norm_order": "post", "clip_qkv": 10.0},
    "pre-norm, untied": {"norm_order": "pre", "tie_embeddings": False},
    "causal, post-norm, untied": {"backbone": "ar", "norm_order": "post", "tie_embeddings": False},
    "causal": {"backbone": "ar", "norm_order": "pre"},
    "no concepts": {"interpretable": False, "norm_order": "post"},
    "causal, no concepts": {"backbone": "ar", "interpretable": False},
    "no discovered": {"use_discovered": False, "num_discovered": None},
    "all flags turned": {
        "use_qk_norm": False,
        "use_rms_norm": False,
        "use_bias": True,
        "mlp_type": "standard",
        "use_attention_known": True,
        "factorize_discovered": False,
        "top_k_known_features": None,
    },
}


@pytest.fixture
def packed(packed_dir: Path) -> PackedCorpus:
    return PackedCorpus.open(packed_dir)


@pytest.mark.parametrize("kind", KINDS)
def test_a_bare_checkpoint_is_read_to_the_last_bit_and_trained_in_fp32(
    kind: str, packed: PackedCorpus, tmp_path: Path
) -> None:
    bare = write_bare(tmp_path / "bare", packed, **KINDS[kind])
    train_model(packed.path, tmp_path / "same", still_run(), init_from=bare)
    stored, same = load_file(bare / "model.safetensors"), load_file(tmp_path / "same/model.safetensors")
    assert stored.keys() == same.keys()
    for name, tensor in stored.items():
        assert tensor.dtype == torch.bfloat16
        assert torch.equal(same[name], tensor.float()), name
    assert load_config(tmp_path / "same") == load_config(bare)

    train_model(packed.path, tmp_path / "trained", short_run(), init_from=bare)
    trained = load_file(tmp_path / "trained/model.safetensors")
    moved = {name for name, tensor in trained.items() if not torch.equal(tensor, same[name])}
    assert {name for name in trained if ".c_attn.weight" in name} <= moved
    assert [entry[1].kind for entry in lineage(tmp_path / "trained")] == ["model", "packed", "annotated"]
    model = vitrail.load(tmp_path / "trained")
    assert len(model.generate("the bread", max_new_tokens=4).token_ids) == 4
    if model.network.config.interpretable:
        assert model.library.find("sailing").concept_id == 1


def test_another_weight_or_configuration_is_another_start(packed: PackedCorpus, tmp_path: Path) -> None:
    bare = write_bare(tmp_path / "bare", packed, dtype=torch.float32)
    first = train_model(packed.path, tmp_path / "model", short_run(), init_from=bare)
    assert train_model(packed.path, tmp_path / "model", short_run(), init_from=bare) == first

    weights = load_file(bare / "model.safetensors")
    names = sorted(weights)
    for shard, part in enumerate((names[::2], names[1::2])):
        save_file({name: weights[name] for name in part}, bare / f"part-{shard}.safetensors")
    (bare / "model.safetensors").unlink()
    assert origin_id(bare) == first.settings["init_checkpoint"], "how it is cut into files does not matter"
    for file in bare.glob("part-*"):
        file.unlink()

    embedding = weights["transformer.tok_emb.weight"]
    embedding[len(embedding) // 3, 5] += 0.5
    save_file(weights, bare / "model.safetensors")
    second = train_model(packed.path, tmp_path / "model", short_run(), init_from=bare)
    assert second.id != first.id

    raw = json.loads((bare / "config.json").read_text())
    (bare / "config.json").write_text(json.dumps(raw | {"rope_base": 77.0}))
    assert train_model(packed.path, tmp_path / "model", short_run(), init_from=bare).id != second.id


def test_one_number_in_the_middle_of_a_large_tensor_counts(packed: PackedCorpus, tmp_path: Path) -> None:
    """`StoredTensors.fingerprint` reads three stretches of each tensor, which would have missed it."""
    bare = write_bare(tmp_path / "bare", packed, dtype=torch.float32, vocab_size=4_000)
    before = origin_id(bare)
    weights = load_file(bare / "model.safetensors")
    weights["transformer.tok_emb.weight"][1_000, 3] += 1.0
    save_file(weights, bare / "model.safetensors")
    assert origin_id(bare) != before


def test_the_shape_of_the_checkpoint_wins(packed: PackedCorpus, tmp_path: Path) -> None:
    """`model` settings are those of new models."""
    bare = write_bare(tmp_path / "bare", packed, backbone="ar", block=4)
    settings = still_run().model_copy(update={"model": short_run(model={"width": 64, "block": 32}).model})
    train_model(packed.path, tmp_path / "model", settings, init_from=bare)
    assert load_config(tmp_path / "model") == load_config(bare)


def test_names_are_those_of_the_corpus_else_of_the_checkpoint_else_numbers(
    packed: PackedCorpus, tmp_path: Path
) -> None:
    bare = write_bare(tmp_path / "bare", packed)
    nameless = shutil.copytree(packed.path, tmp_path / "packed")
    assert run_library(packed, None).find("chess").concept_id == 2
    manifest = packed.manifest.model_copy(update={"files": {}})
    (nameless / "concepts.parquet").unlink()
    without = PackedCorpus(nameless, manifest)
    assert run_library(without, bare).card("known", 2).name == "#2"
    assert run_library(without, None).card("known", 2).name == "#2"
    shutil.copyfile(packed.path / "concepts.parquet", bare / "concepts.parquet")
    assert run_library(without, bare).find("chess").concept_id == 2


def test_numbers_for_names_contradict_no_names(packed: PackedCorpus, tmp_path: Path) -> None:
    bare = write_bare(tmp_path / "bare", packed)
    numbered_library(3, 9).save(bare / "concepts.parquet")
    train_model(packed.path, tmp_path / "model", still_run(), init_from=bare)
    assert vitrail.load(tmp_path / "model").library.find("chess").concept_id == 2


def _same_size(bare: Path, packed: PackedCorpus) -> None:
    """The corpus's own tokenizer with two of its merges in another order, and so another one."""
    folder = bare / "tokenizer"
    packed.tokenizer().save(folder)
    values = json.loads((folder / "tokenizer.json").read_text())
    merges = values["model"]["merges"]
    merges[-1], merges[-2] = merges[-2], merges[-1]
    (folder / "tokenizer.json").write_text(json.dumps(values))


def _other_names(bare: Path, packed: PackedCorpus) -> None:
    cards = ConceptLibrary.load(packed.path).cards
    renamed = [replace(card, name="gardening") if card.concept_id == 1 else card for card in cards]
    ConceptLibrary(renamed).save(bare / "concepts.parquet")


def _int8(bare: Path, _packed: PackedCorpus) -> None:
    weights = load_file(bare / "model.safetensors")
    name = "transformer.blocks.1.mlp.c_fc.weight"
    save_file(weights | {name: weights[name].to(torch.int8)}, bare / "model.safetensors")


def _not_a_number(bare: Path, _packed: PackedCorpus) -> None:
    weights = load_file(bare / "model.safetensors")
    weights["transformer.blocks.1.mlp.c_fc.weight"][2, 3] = torch.nan
    save_file(weights, bare / "model.safetensors")


def _torn(bare: Path, _packed: PackedCorpus) -> None:
    content = (bare / "model.safetensors").read_bytes()
    (bare / "model.safetensors").write_bytes(content[: len(content) // 2])


def _as_it_is(_bare: Path, _packed: PackedCorpus) -> None:
    pass


Change = Callable[[Path, PackedCorpus], None]
MISFITS: dict[str, tuple[dict[str, object], Change, type[Exception], str]] = {
    "vocabulary": ({"vocab_size": 512}, _as_it_is, ConfigError, r"another tokenizer \(\d+ tokens\) than .* \(512\)"),
    "tokenizer": ({}, _same_size, ConfigError, "another tokenizer than .*, of the same size; pack with --tokenizer"),
    "controls": ({"mask_id": 9}, _as_it_is, ConfigError, r"control ids .* has \[0, 1, 2, 3, 9\]; pack with"),
    "concepts": ({"num_concepts": 5}, _as_it_is, ConfigError, "made for 3 known concepts, .* has 5; annotate with"),
    "names": ({}, _other_names, ConfigError, "concept 1 is 'sailing', in .* it is 'gardening'; annotate with"),
    "length": (
        {"max_length": 32},
        _as_it_is,
        ConfigError,
        "64 tokens, .* reads 32; pack with --length 32",
    ),
    "int8": ({}, _int8, CheckpointError, "'transformer.blocks.1.mlp.c_fc.weight' holds I8; convert it to BF16"),
    "nan": ({}, _not_a_number, CheckpointError, r"holds NaN or infinite values, first at \[2, 3\]"),
    "torn": ({}, _torn, CheckpointError, "damaged or truncated"),
}


@pytest.mark.parametrize("kind", MISFITS)
def test_what_does_not_fit_is_one_line(kind: str, packed: PackedCorpus, tmp_path: Path) -> None:
    flags, change, error, message = MISFITS[kind]
    bare = write_bare(tmp_path / "bare", packed, **flags)
    change(bare, packed)
    with pytest.raises(error, match=message) as caught:
        train_model(packed.path, tmp_path / "model", short_run(), init_from=bare)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "model").exists()


def test_a_torn_artifact_and_no_checkpoint_at_all_are_named(packed: PackedCorpus, tmp_path: Path) -> None:
    train_model(packed.path, tmp_path / "base", short_run())
    _torn(tmp_path / "base", packed)
    with pytest.raises(ArtifactError, match=r"model\.safetensors: damaged or missing .*; build the model again"):
        train_model(packed.path, tmp_path / "model", short_run(), init_from=tmp_path / "base")
    with pytest.raises(ArtifactError, match="nowhere"):
        train_model(packed.path, tmp_path / "model", short_run(), init_from=tmp_path / "nowhere")


def test_a_change_of_optimiser_starts_its_momentum_afresh(packed: PackedCorpus, tmp_path: Path) -> None:
    """Muon keeps another state than AdamW: the state of the stage before once met the wrong optimiser as a KeyError."""
    muon = {"matrices": "muon", "heads": "muon"}
    train_model(packed.path, tmp_path / "base", short_run(optim=muon))
    train_model(packed.path, tmp_path / "model", short_run(), init_from=tmp_path / "base")
    train_model(packed.path, tmp_path / "back", short_run(optim=muon), init_from=tmp_path / "model")
