"""The stage as a whole, on a real packed corpus of a few dozen documents."""

import json
from pathlib import Path

import pytest
import torch

from tests.train.themes import FILLER, THEMES
from vitrail.artifacts import lineage, read_manifest
from vitrail.atlas import ConceptLibrary
from vitrail.errors import ConfigError, RunFailed
from vitrail.model import load_model
from vitrail.packed import PackedCorpus, PackSettings, pack_corpus
from vitrail.text import Tokenizer, train_tokenizer
from vitrail.train import HeldoutSettings, ModelSettings, Progress, SteeringSettings, TrainSettings, train_model
from vitrail.train.steering_phase import lifted_tokens


def _settings(steering: bool = False) -> TrainSettings:
    return TrainSettings(
        model=ModelSettings(width=16, num_layers=2, num_heads=2, block=8, discovered_rank=4, intermediate_size=32),
        total_tokens=6 * 4 * 64,
        batch_size=4,
        precision="fp32",
        heldout=HeldoutSettings(every_steps=3, sequences=4),
        steering=SteeringSettings() if steering else None,
    )


class _StopError(Exception):
    pass


def _stop_at_four(progress: Progress) -> None:
    if progress.step == 4:
        raise _StopError


def test_a_model_is_an_artifact_and_an_interrupted_one_is_the_same(packed_dir: Path, tmp_path: Path) -> None:
    manifest = train_model(packed_dir, tmp_path / "whole", _settings())
    assert manifest.kind == "model"
    assert manifest.counts["steps"] == 6
    with pytest.raises(_StopError):
        train_model(packed_dir, tmp_path / "broken", _settings(), on_progress=_stop_at_four)
    assert not (tmp_path / "broken").exists(), "a directory appears whole or not at all"
    again = train_model(packed_dir, tmp_path / "broken", _settings())
    assert (again.id, again.files) == (manifest.id, manifest.files)
    assert [entry[1].kind for entry in lineage(tmp_path / "whole")] == ["model", "packed", "annotated"]


def test_a_model_loads_with_its_tokenizer_and_library(packed_dir: Path, tmp_path: Path) -> None:
    out = tmp_path / "model"
    train_model(packed_dir, out, _settings())
    model, tokenizer = load_model(out, "cpu", torch.float32), Tokenizer.load(out / "tokenizer")
    assert model.config.vocab_size == tokenizer.vocab_size
    library = ConceptLibrary.load(out)
    assert library.num_known == 3
    assert library.find("sailing").concept_id == 1
    discovered = [card for card in library.cards if card.head == "discovered"]
    assert len(discovered) == model.unknown_head.num_concepts == 9
    assert all(card.is_automatic and card.words for card in discovered)
    assert not any(path.suffix in {".pt", ".pkl", ".bin"} for path in out.rglob("*")), "nothing is pickled"
    lines = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    assert sum("heldout" in line for line in lines) == 2


def test_steering_phase_and_its_control_continue_a_model(packed_dir: Path, tmp_path: Path) -> None:
    train_model(packed_dir, tmp_path / "base", _settings())
    for name, steering in (("steered", True), ("control", False)):
        out = tmp_path / name
        manifest = train_model(packed_dir, out, _settings(steering), init_from=tmp_path / "base")
        assert manifest.inputs["init"].id == read_manifest(tmp_path / "base").id
        lines = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
        kinds = [line["batch"] for line in lines if "batch" in line]
        assert kinds.count("steering") == (2 if steering else 0)
        assert any("respond" in line for line in lines) == steering


def test_a_finished_model_is_not_trained_again(packed_dir: Path, tmp_path: Path) -> None:
    first = train_model(packed_dir, tmp_path / "model", _settings())
    seen: list[Progress] = []
    assert train_model(packed_dir, tmp_path / "model", _settings(), on_progress=seen.append) == first
    assert not seen


def test_another_vocabulary_is_refused(packed_dir: Path, tmp_path: Path) -> None:
    train_model(packed_dir, tmp_path / "base", _settings())
    tokenizer = train_tokenizer(FILLER.split(), 300)
    annotated = packed_dir.parent / "annotated"
    pack_corpus(annotated, tokenizer, tmp_path / "other", PackSettings(length=64, long_chunks="drop"))
    with pytest.raises(ConfigError, match=r"packed with another tokenizer \(\d+ tokens\)"):
        train_model(tmp_path / "other", tmp_path / "model", _settings(), init_from=tmp_path / "base")


def test_lifted_tokens_are_the_themes_words(packed_dir: Path) -> None:
    packed = PackedCorpus.open(packed_dir)
    tokenizer, chosen = packed.tokenizer(), lifted_tokens(packed, 6, 1000)
    for concept, words in enumerate(THEMES.values()):
        own = "".join(tokenizer.token_text(i) for i in chosen[concept].tolist() if i >= 0)
        others = set(" ".join(v for v in THEMES.values() if v != words).split())
        assert any(word in own for word in words.split())
        assert not any(word in own for word in others)
    assert bool((chosen[:, 0] >= 0).all())


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"seed": -1}, "seed"),
        ({"noise": {"high": [[0.0, 2.0]]}}, "from 0 to 1"),
        ({"steering": {"weakest": 2.0}}, "weakest 2 is above strongest 1"),
        ({"steering": {"density": [[0.0, 7.0]]}}, "density is a share from 0 to 1"),
        ({"steering": {"respond": -1.0}}, "greater than or equal to 0"),
        ({"steering": {"target_logit_change": 0.0}}, "greater than 0"),
    ],
)
def test_settings_that_cannot_be(values: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TrainSettings.parse(values)


def test_a_width_that_heads_do_not_divide_is_refused_before_anything_is_written(
    packed_dir: Path, tmp_path: Path
) -> None:
    settings = TrainSettings(model=ModelSettings(width=63), total_tokens=64)
    with pytest.raises(ConfigError, match="63"):
        train_model(packed_dir, tmp_path / "model", settings)
    assert not (tmp_path / "model").exists()


def test_steering_that_cannot_be_is_refused_before_the_first_step(packed_dir: Path, tmp_path: Path) -> None:
    model = ModelSettings(width=16, num_layers=1, num_heads=2, intermediate_size=32, block=8)
    settings = TrainSettings(model=model, total_tokens=64, batch_size=1)
    deep = settings.model_copy(update={"steering": SteeringSettings(layer=2, warmup_steps=1_000)})
    with pytest.raises(ConfigError, match=r"steering\.layer 2: the model has 1 layers"):
        train_model(packed_dir, tmp_path / "deep", deep)
    causal = settings.model_copy(
        update={"model": model.model_copy(update={"backbone": "ar"}), "steering": SteeringSettings()}
    )
    with pytest.raises(ConfigError, match="which backbone ar has not"):
        train_model(packed_dir, tmp_path / "ar", causal)
    values = settings.model_dump(exclude_unset=True) | {"compose": {}, "loss": {}}
    values["model"] = values["model"] | {"interpretable": False}
    train_model(packed_dir, tmp_path / "plain", TrainSettings.parse(values))
    steered = settings.model_copy(update={"steering": SteeringSettings()})
    with pytest.raises(ConfigError, match="the model has none; leave steering out"):
        train_model(packed_dir, tmp_path / "steered", steered, init_from=tmp_path / "plain")


def test_a_model_is_not_replaced_by_its_own_continuation(packed_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is the model that is continued"):
        train_model(packed_dir, tmp_path / "model", _settings(), init_from=tmp_path / "model")


def test_a_model_that_no_memory_holds_is_one_line(packed_dir: Path, tmp_path: Path) -> None:
    settings = _settings()
    huge = settings.model_copy(update={"model": settings.model.model_copy(update={"discovered_ratio": 1e12})})
    with pytest.raises(RunFailed, match=r"out of memory .*lower micro_batch"):
        train_model(packed_dir, tmp_path / "model", huge)
    assert list(tmp_path.iterdir()) == []


def test_what_only_costs_may_change_before_a_run_goes_on(packed_dir: Path, tmp_path: Path) -> None:
    settings = _settings().model_copy(update={"checkpoint_every_steps": 2})
    with pytest.raises(_StopError):
        train_model(packed_dir, tmp_path / "model", settings, on_progress=_stop_at_four)
    seen: list[Progress] = []
    cheaper = settings.model_copy(update={"micro_batch": 2, "activation_checkpointing": True})
    train_model(packed_dir, tmp_path / "model", cheaper, on_progress=seen.append)
    assert seen[0].step in (3, 5), "from the last checkpoint that was whole: they are written in the background"
    assert train_model(packed_dir, tmp_path / "model", settings).counts["steps"] == 6, "and it is the same run"
