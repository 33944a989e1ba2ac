"""The command line: exit codes, one-line errors, JSON on stdout."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

COMMANDS = [
    ["demo"],
    ["corpus", "import"],
    ["atlas", "build"],
    ["atlas", "annotate"],
    ["atlas", "search"],
    ["atlas", "show"],
    ["atlas", "edit"],
    ["atlas", "tree"],
    ["atlas", "evaluate"],
    ["atlas", "prompts"],
    ["atlas", "import"],
    ["atlas", "page"],
    ["atlas", "compare"],
    ["pack"],
    ["train"],
    ["generate"],
    ["explain"],
    ["serve"],
    ["chat"],
    ["index", "build"],
    ["index", "query"],
    ["steer", "calibrate"],
    ["metrics"],
    ["info"],
    ["convert"],
]


def vitrail(*words: str) -> subprocess.CompletedProcess[str]:
    """Run the real command line in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", "from vitrail.cli.main import main; main()", *words],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def assert_one_line(done: subprocess.CompletedProcess[str], *parts: str) -> None:
    """Bad input: exit code 2, nothing on stdout, one line on stderr that names the fault."""
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("vitrail: ")
    for part in parts:
        assert part in line


def assert_last_line(done: subprocess.CompletedProcess[str], *parts: str) -> None:
    """The same for a command that had begun to work: progress may stand above the one line."""
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    line = done.stderr.strip().splitlines()[-1]
    assert line.startswith("vitrail: ")
    for part in parts:
        assert part in line


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_gives_an_example(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    from vitrail.cli.main import main

    with pytest.raises(SystemExit) as stop:
        main([*command, "--help"])
    assert stop.value.code == 0
    assert "vitrail " + " ".join(command) in " ".join(capsys.readouterr().out.split())


def test_help_loads_no_tensor_library() -> None:
    code = "import sys; from vitrail.cli.main import app; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_misspelt_command() -> None:
    assert_one_line(vitrail("dmeo"), "dmeo", "demo")


def test_misspelt_option() -> None:
    assert_one_line(vitrail("demo", "--minuets", "3"), "--minuets", "--minutes")


def test_minutes_must_be_positive() -> None:
    assert_one_line(vitrail("demo", "--minutes", "-1"), "minutes")


def test_unknown_setting_names_the_nearest(tmp_path: Path) -> None:
    config = tmp_path / "run.yaml"
    config.write_text("model:\n  widht: 128\n", encoding="utf-8")
    done = vitrail("train", str(config), "--packed", str(tmp_path), "--out", str(tmp_path / "out"))
    assert_one_line(done, "run.yaml", "model.widht", "width")
    assert not (tmp_path / "out").exists()


def test_unknown_setting_on_the_command_line(tmp_path: Path) -> None:
    config = tmp_path / "run.yaml"
    config.write_text("seed: 1\n", encoding="utf-8")
    done = vitrail(
        "train", str(config), "--packed", str(tmp_path), "--out", str(tmp_path / "o"), "--model.width", "12x"
    )
    assert_one_line(done, "model.width", "12x")


def test_colons_in_a_message_are_no_emoji(tmp_path: Path) -> None:
    done = vitrail("pack", str(tmp_path), "--out", str(tmp_path / "o"), "--tokenizer", "train:x")
    assert_last_line(done, "train:x:")


def test_config_that_is_not_yaml(tmp_path: Path) -> None:
    config = tmp_path / "run.yaml"
    config.write_text("a: [1,\n", encoding="utf-8")
    assert_one_line(
        vitrail("train", str(config), "--packed", str(tmp_path), "--out", str(tmp_path / "o")), "run.yaml", "YAML"
    )


def test_model_directory_without_files(tmp_path: Path) -> None:
    assert_one_line(vitrail("generate", str(tmp_path), "hello"), str(tmp_path), "config.json")


def test_no_such_model() -> None:
    assert_one_line(vitrail("generate", "no/such/model", "hello"), "no/such/model")


def test_no_such_device(tmp_path: Path) -> None:
    assert_one_line(vitrail("generate", str(tmp_path), "hello", "--device", "quantum"), "quantum")


def test_empty_corpus(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    done = vitrail("corpus", "import", str(tmp_path / "texts"), "--out", str(tmp_path / "c"))
    assert_last_line(done, "texts", "no readable text")
    assert not (tmp_path / "c").exists()


def test_demo_on_an_empty_folder(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    done = vitrail("demo", "--corpus", str(tmp_path / "texts"), "--out", str(tmp_path / "d"))
    assert_last_line(done, "texts", "no readable text")


def test_demo_on_one_short_document(tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("A short note about nothing much.", encoding="utf-8")
    done = vitrail("demo", "--corpus", str(tmp_path / "note.txt"), "--out", str(tmp_path / "d"))
    assert_last_line(done, "too small")


@pytest.mark.parametrize("place", ["file", "file/d", "/proc/vitrail/d"])
def test_demo_where_no_folder_can_be(place: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder", encoding="utf-8")
    done = vitrail("demo", "--corpus", str(tmp_path / "file"), "--out", str(tmp_path / place))
    assert_one_line(done, place, "cannot be made")


def test_journal_that_holds_something_else(tmp_path: Path) -> None:
    (tmp_path / "stages.json").write_text("[]", encoding="utf-8")
    assert_one_line(vitrail("demo", "--out", str(tmp_path)), "stages.json", "delete it")


def test_demo_on_one_long_document(tmp_path: Path) -> None:
    """It trained three models before the calibration found no held-out text."""
    text = "The river flows from the hills to the sea.\n\n" * 3000
    (tmp_path / "book.txt").write_text(text, encoding="utf-8")
    done = vitrail("demo", "--corpus", str(tmp_path / "book.txt"), "--out", str(tmp_path / "d"))
    assert_last_line(done, "too small", "cut long ones")


def test_info_on_a_plain_folder(tmp_path: Path) -> None:
    assert_one_line(vitrail("info", str(tmp_path)), str(tmp_path), "manifest.json")


def test_json_is_one_object_on_stdout(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("The river flows from the hills to the sea. " * 20, encoding="utf-8")
    done = vitrail("corpus", "import", str(tmp_path / "a.txt"), "--out", str(tmp_path / "c"), "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["counts"]["documents"] == 1
    described = vitrail("info", str(tmp_path / "c"), "--json")
    assert json.loads(described.stdout)["id"] == result["id"]


def test_debug_adds_the_traceback(tmp_path: Path) -> None:
    done = vitrail("info", str(tmp_path), "--debug")
    assert done.returncode == 2
    assert "Traceback" in done.stderr


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    (tmp_path / "a.txt").write_text("Der Fluß fließt zum Meer. " * 20, encoding="utf-8")
    done = vitrail("corpus", "import", str(tmp_path / "a.txt"), "--out", str(tmp_path / "größe"))
    assert done.returncode == 0, done.stderr
    return tmp_path / "größe"


@pytest.mark.parametrize(("redirect", "code"), [("| true", 1), (">&-", 0), ("> /dev/full", 1)])
def test_stdout_that_takes_no_more_is_no_traceback(redirect: str, code: int, corpus: Path) -> None:
    """A closed pipe, a closed stream and a full disk: the last two were tracebacks."""
    words = " ".join(map(shlex.quote, [sys.executable, "-c", "from vitrail.cli.main import main; main()"]))
    line = f"{words} info {shlex.quote(str(corpus))} --json {redirect}; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == (redirect == "> /dev/full")


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_terminal_without_the_letters(flags: tuple[str, ...], corpus: Path) -> None:
    words = [sys.executable, "-c", "from vitrail.cli.main import main; main()", "info", str(corpus), *flags]
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(words, capture_output=True, timeout=120, check=False, env=env)
    assert done.returncode == 0, done.stderr
    assert b"gr\\" in done.stdout
