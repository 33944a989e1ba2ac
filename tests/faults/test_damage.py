"""Artifacts that lost a file or a part of one, and parts that do not belong together."""

import json
from pathlib import Path

import pytest

from tests.faults.command import vitrail
from tests.faults.test_places import assert_refused
from tests.faults.world import STAGES, World, assert_whole
from vitrail.artifacts import read_json, read_manifest, write_json

FILES = {
    "corpus": "documents/part-00000.parquet",
    "atlas": "annotator.safetensors",
    "annotated": "embeddings/part-00000.npy",
    "packed": "shards/00000.train.safetensors",
    "model": "model.safetensors",
    "index": "index.faiss",
}


def damage(file: Path, how: str) -> None:
    if how == "missing":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:-10])


@pytest.fixture
def copy(world: World, tmp_path: Path) -> World:
    (tmp_path / "world").mkdir()
    return world.copy(tmp_path / "world")


@pytest.mark.parametrize("how", ["missing", "truncated"])
def test_damaged_stage_is_not_done(how: str, copy: World, tmp_path: Path) -> None:
    """It says so and makes it again, with the same id; what was made from it stays done."""
    ids = {stage: read_manifest(copy.of(stage)).id for stage in STAGES}
    for stage, name in FILES.items():
        damage(copy.of(stage) / name, how)
        done = vitrail(*copy.words(stage, copy.of(stage)), folder=tmp_path)
        assert done.code == 0, done.err
        assert name in done.err
        assert "is built again" in done.err
        assert_whole(copy.of(stage))
        again = vitrail(*copy.words(stage, copy.of(stage)), folder=tmp_path)
        assert "built again" not in again.err
    assert {stage: read_manifest(copy.of(stage)).id for stage in STAGES} == ids


READERS = {
    "corpus": ["atlas"],
    "atlas": ["annotated"],
    "annotated": ["packed", "index"],
    "packed": ["model", "index"],
    "model": ["index"],
}


@pytest.mark.parametrize("how", ["missing", "truncated"])
def test_stages_name_the_damaged_file_of_an_input(how: str, copy: World, tmp_path: Path) -> None:
    for stage, readers in READERS.items():
        file = copy.of(stage) / FILES[stage]
        whole = file.read_bytes()
        damage(file, how)
        for reader in readers:
            done = vitrail(*copy.words(reader, tmp_path / "out"), folder=tmp_path)
            assert_refused(done, file.suffix)
            assert stage == "model" or (file.name in done.last_line and "again" in done.last_line)
            assert not (tmp_path / "out").exists()
        file.write_bytes(whole)


@pytest.mark.parametrize("how", ["missing", "truncated"])
@pytest.mark.parametrize(
    ("stage", "name"),
    [
        ("model", "model.safetensors"),
        ("model", "tokenizer/tokenizer.json"),
        ("model", "concepts.parquet"),
        ("index", "index.faiss"),
        ("index", "transducer.safetensors"),
        ("annotated", "embeddings/part-00000.npy"),
    ],
)
def test_query_names_the_damaged_file(stage: str, name: str, how: str, copy: World, tmp_path: Path) -> None:
    damage(copy.of(stage) / name, how)
    done = vitrail("index", "query", copy.of("model"), "judge", "--index", copy.of("index"), folder=tmp_path)
    assert_refused(done, Path(name).suffix, str(copy.of(stage)))
    assert any(way in done.last_line for way in ("again", "atlas build", "tokenizer", "is this a model directory?"))


def test_info_tells_of_damage(copy: World, tmp_path: Path) -> None:
    damage(copy.of("packed") / FILES["packed"], "missing")
    done = vitrail("info", copy.of("packed"), folder=tmp_path)
    assert done.code == 0
    assert "shards/00000.train.safetensors: damaged or missing (no such file)" in done.out
    done = vitrail("info", copy.of("corpus"), "--json", folder=tmp_path)
    assert json.loads(done.out)["damage"] == ""


def test_manifests_without_sizes_are_read(copy: World, tmp_path: Path) -> None:
    """As older versions wrote them: a file that is gone is noticed, one that was cut is found when it is read."""
    manifest = copy.of("corpus") / "manifest.json"
    write_json(manifest, {key: value for key, value in read_json(manifest).items() if key != "sizes"})
    words = copy.words("corpus", copy.of("corpus"))
    stamp = manifest.stat().st_mtime_ns
    assert vitrail(*words, folder=tmp_path).code == 0
    assert manifest.stat().st_mtime_ns == stamp, "it is done"
    damage(copy.of("corpus") / FILES["corpus"], "truncated")
    assert_refused(vitrail(*copy.words("atlas", tmp_path / "atlas"), folder=tmp_path), "part-00000.parquet", "again")
    damage(copy.of("corpus") / FILES["corpus"], "missing")
    done = vitrail(*words, folder=tmp_path)
    assert done.code == 0
    assert "is built again" in done.err
    assert manifest.stat().st_mtime_ns != stamp


def test_damaged_manifest_is_not_written_over(copy: World, tmp_path: Path) -> None:
    manifest = copy.of("corpus") / "manifest.json"
    manifest.write_bytes(manifest.read_bytes()[:100])
    done = vitrail(*copy.words("corpus", copy.of("corpus")), folder=tmp_path)
    assert_refused(done, "manifest.json: damaged JSON", "nothing was overwritten")


def test_index_of_another_model(world: World, tmp_path: Path) -> None:
    done = vitrail(*world.words("model", tmp_path / "other"), "--seed", "7", folder=tmp_path)
    assert done.code == 0, done.err
    other, index = tmp_path / "other", world.of("index")
    wrong = f"built for model {read_manifest(world.of('model')).id[:12]}"
    for words in (
        ("explain", other, "The judge", "--max-new-tokens", "1", "--index", index),
        ("index", "query", other, "The judge", "--index", index),
    ):
        done = vitrail(*words, folder=tmp_path)
        assert_refused(done, wrong, "vitrail index build")
        assert done.out == ""


def test_index_whose_corpus_was_annotated_anew(copy: World, tmp_path: Path) -> None:
    done = vitrail(*copy.words("atlas", copy.of("atlas")), "--seed", "7", folder=tmp_path)
    assert done.code == 0, done.err
    done = vitrail(*copy.words("annotated", copy.of("annotated")), folder=tmp_path)
    assert done.code == 0, done.err
    done = vitrail("index", "query", copy.of("model"), "judge", "--index", copy.of("index"), folder=tmp_path)
    assert_refused(done, "made from another version of", "build the index again")
