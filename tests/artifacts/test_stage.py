"""Artifacts: whole or absent, rebuilt when stale, the same id wherever and whenever they are made."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from vitrail.artifacts import Stage, lineage, read_json, read_manifest, write_faults_are_clear, write_json
from vitrail.errors import ArtifactError, RunFailed, VitrailError


def build(out: Path, text: str = "words", inputs: dict[str, Path] | None = None, kind: str = "corpus") -> str:
    stage = Stage(out, kind, {"text": text}, inputs or {})
    with stage.write() as writing:
        (writing.dir / "deep").mkdir()
        (writing.dir / "deep" / "text.txt").write_text(text)
        writing.counts["documents"] = 1
    return read_manifest(out, kind).id


def entries(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_written_artifact_is_whole_and_done(tmp_path: Path) -> None:
    out = tmp_path / "corpus"
    assert not Stage(out, "corpus", {"text": "words"}, {}).is_done
    build(out)
    manifest = read_manifest(out, "corpus")
    assert Stage(out, "corpus", {"text": "words"}, {}).is_done
    assert manifest.counts == {"documents": 1}
    assert list(manifest.files) == ["deep/text.txt"]
    assert entries(tmp_path) == ["corpus"], "scratch and hidden folders must be gone"


def test_id_depends_on_content_and_settings_alone(tmp_path: Path) -> None:
    first = build(tmp_path / "here" / "corpus")
    again = build(tmp_path / "there" / "deeper" / "corpus")
    assert first == again, "the id must not depend on place or time"
    assert first != build(tmp_path / "other", text="other")


def test_stale_artifact_is_rebuilt_and_replaced(tmp_path: Path) -> None:
    out = tmp_path / "corpus"
    old = build(out)
    assert not Stage(out, "corpus", {"text": "new"}, {}).is_done
    assert build(out, text="new") != old
    assert (out / "deep" / "text.txt").read_text() == "new"
    assert entries(tmp_path) == ["corpus"]


def test_changed_input_makes_stale(tmp_path: Path) -> None:
    build(tmp_path / "corpus")
    inputs = {"corpus": tmp_path / "corpus"}
    build(tmp_path / "atlas", inputs=inputs, kind="atlas")
    assert Stage(tmp_path / "atlas", "atlas", {"text": "words"}, inputs).is_done
    build(tmp_path / "corpus", text="new")
    assert not Stage(tmp_path / "atlas", "atlas", {"text": "words"}, inputs).is_done


def test_lineage_reaches_the_raw_text_and_moves_with_the_tree(tmp_path: Path) -> None:
    build(tmp_path / "runs" / "corpus")
    build(tmp_path / "runs" / "atlas", inputs={"corpus": tmp_path / "runs" / "corpus"}, kind="atlas")
    both = {"corpus": tmp_path / "runs" / "corpus", "atlas": tmp_path / "runs" / "atlas"}
    build(tmp_path / "runs" / "annotated", inputs=both, kind="annotated")
    shutil.move(tmp_path / "runs", tmp_path / "moved")
    found = [(depth, manifest.kind) for depth, manifest, _ in lineage(tmp_path / "moved" / "annotated")]
    assert found == [(0, "annotated"), (1, "atlas"), (2, "corpus"), (1, "corpus")]


def test_failure_leaves_the_old_artifact_and_keeps_work(tmp_path: Path) -> None:
    out = tmp_path / "corpus"
    old = build(out)

    def interrupted() -> None:
        with Stage(out, "corpus", {"text": "new"}, {}).write() as writing:
            (writing.work / "step").write_text("1")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert read_manifest(out).id == old
    with Stage(out, "corpus", {"text": "new"}, {}).write() as writing:
        assert (writing.work / "step").read_text() == "1", "an interrupted attempt's work is kept"
    assert entries(tmp_path) == ["corpus"]


def test_killed_process_leaves_nothing_visible(tmp_path: Path) -> None:
    out = tmp_path / "corpus"
    script = textwrap.dedent(f"""
        import time
        from pathlib import Path
        from vitrail.artifacts import Stage
        with Stage(Path({str(out)!r}), "corpus", {{"text": "words"}}, {{}}).write() as writing:
            (writing.dir / "half.txt").write_text("half")
            print("writing", flush=True)
            time.sleep(60)
    """)
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "writing\n"
        with pytest.raises(RunFailed, match="another process is writing"):
            build(out)
        process.send_signal(signal.SIGKILL)
    assert not out.exists()
    build(out)
    assert entries(tmp_path) == ["corpus"]
    assert list(read_manifest(out).files) == ["deep/text.txt"], "leftovers of the killed attempt must not get in"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_full_disk_is_one_clear_line(tmp_path: Path, code: int) -> None:
    with (
        pytest.raises(RunFailed, match="disk is full") as caught,
        Stage(tmp_path / "corpus", "corpus", {}, {}).write() as writing,
    ):
        raise OSError(code, os.strerror(code), str(writing.dir))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "corpus").exists()


def test_foreign_folder_is_refused_and_untouched(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(ArtifactError, match="nothing was overwritten"):
        Stage(tmp_path, "corpus", {}, {})
    build(tmp_path / "corpus")
    with pytest.raises(ArtifactError, match="holds a 'corpus' artifact, wanted an 'atlas'"):
        Stage(tmp_path / "corpus", "atlas", {}, {})
    assert (tmp_path / "thesis.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "damaged JSON"),
        ("[]", "damaged"),
        ('{"kind": "corpus"}', "damaged"),
        ('{"kind": "corpus", "version": 99}', "upgrade"),
    ],
)
def test_damaged_manifest_is_one_line(tmp_path: Path, content: str, message: str) -> None:
    build(tmp_path / "corpus")
    (tmp_path / "corpus" / "manifest.json").write_text(content)
    with pytest.raises(ArtifactError, match=message) as caught:
        read_manifest(tmp_path / "corpus")
    assert "\n" not in str(caught.value)


def test_missing_artifact_says_what_to_name(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="no such directory; name a 'packed' artifact"):
        read_manifest(tmp_path / "nowhere", "packed")
    with pytest.raises(ArtifactError, match=r"manifest\.json is missing"):
        read_manifest(tmp_path)


def test_equal_values_are_equal_bytes(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"b": 1, "a": [0.1, "é"]})
    write_json(tmp_path / "b.json", {"a": [0.1, "é"], "b": 1})
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    assert read_json(tmp_path / "a.json") == json.loads('{"a": [0.1, "é"], "b": 1}')
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "a.json", float("nan"))
    assert entries(tmp_path) == ["a.json", "b.json"]


def test_full_disk_is_clear_whoever_met_it(tmp_path: Path) -> None:
    """FAISS and safetensors raise exceptions of their own that only quote the system: those were tracebacks."""
    with (
        pytest.raises(RunFailed, match="disk is full"),
        Stage(tmp_path / "index", "index", {}, {}).write(),
    ):
        raise RuntimeError("write error in index.faiss: 1048531 != 3588096 (No space left on device)")


@pytest.mark.parametrize(("code", "words"), [(errno.ENOSPC, "disk is full"), (errno.EROFS, "file system is read-only")])
def test_fault_of_a_cache_is_not_taken_for_one_of_the_artifact(tmp_path: Path, code: int, words: str) -> None:
    """The line names the place where space is missing."""
    fault = OSError(code, os.strerror(code))
    with (
        pytest.raises(VitrailError, match=f"cache/vectors: the {words}"),
        Stage(tmp_path / "runs" / "atlas", "atlas", {}, {}).write(),
        write_faults_are_clear(tmp_path / "runs" / "cache" / "vectors"),
    ):
        raise fault
    with (
        pytest.raises(VitrailError, match=f"runs/atlas: the {words}"),
        Stage(tmp_path / "runs" / "atlas", "atlas", {}, {}).write() as writing,
        write_faults_are_clear(writing.work / "part"),
    ):
        raise fault


@pytest.mark.parametrize("place", ["file/corpus", "/proc/vitrail/corpus"])
def test_place_that_cannot_be_written_to_is_one_line(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(ArtifactError, match="cannot be made") as caught:
        build(tmp_path / place)
    assert "\n" not in str(caught.value)


def test_place_behind_a_link_is_filled_and_the_link_stays(tmp_path: Path) -> None:
    """The link used to be replaced by a folder, and a link to nothing gave a traceback."""
    build(tmp_path / "disk" / "deep" / "corpus")
    (tmp_path / "runs").symlink_to("disk/deep")
    (tmp_path / "runs" / "atlas").symlink_to("elsewhere")
    build(tmp_path / "runs" / "atlas", inputs={"corpus": tmp_path / "runs" / "corpus"}, kind="atlas")
    assert (tmp_path / "runs" / "atlas").is_symlink()
    assert read_manifest(tmp_path / "disk" / "deep" / "elsewhere", "atlas").inputs["corpus"].path == "../corpus"
    assert [manifest.kind for _, manifest, _ in lineage(tmp_path / "runs" / "atlas")] == ["atlas", "corpus"]
    assert entries(tmp_path / "disk" / "deep") == ["atlas", "corpus", "elsewhere"]


def test_failure_without_work_leaves_no_scratch(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError), Stage(tmp_path / "corpus", "corpus", {}, {}).write():
        raise ArtifactError("no")
    assert entries(tmp_path) == []


def test_arguments_that_are_not_utf8_do_not_end_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["vitrail", "caf\udce9.txt"])
    build(tmp_path / "corpus")
    assert read_json(tmp_path / "corpus" / "provenance.json")["arguments"] == ["vitrail", "caf?.txt"]
