"""The whole path through the real command line, on real text at a toy budget, and what users do with the result."""

import json
import os
import pty
import pydoc_data.topics
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.request import urlopen

import pytest

from vitrail.api import load
from vitrail.artifacts import read_manifest
from vitrail.atlas import ConceptLibrary
from vitrail.demo.places import STAGES
from vitrail.errors import CheckpointError
from vitrail.text import train_tokenizer

MINUTES = "0.2"
TOY_ATLAS = ("--num_concepts", "32", "--max_chunks", "6000", "--max_tags", "4000", "--starter", "false")
ARTIFACTS = [stage for stage in STAGES if stage != "calibration"]


# A shell without job control lets background jobs, such as a whole test run, ignore Ctrl-C; users' shells do not.
MAIN = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\nfrom vitrail.cli.main import main; main()"
)


def command(*words: str) -> list[str]:
    return [sys.executable, "-c", MAIN, *words]


def vitrail(*words: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*words), capture_output=True, text=True, timeout=500, check=False, env={**os.environ, **(env or {})}
    )


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The manual's topics, which every Python brings along, as JSONL."""
    path = tmp_path_factory.mktemp("texts") / "topics.jsonl"
    records = [
        {"text": text, "title": topic, "source": "python-manual", "domain": topic[:1]}
        for topic, text in sorted(pydoc_data.topics.topics.items())
    ]
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def demo(texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished demo."""
    out = tmp_path_factory.mktemp("demo") / "run"
    done = vitrail("demo", "--corpus", str(texts), "--minutes", MINUTES, "--out", str(out), "--no-serve")
    assert done.returncode == 0, done.stderr[-3000:]
    assert str(out / "report.html") in done.stdout
    return out


def ids(out: Path) -> dict[str, str]:
    return {stage: read_manifest(out / stage).id for stage in ARTIFACTS}


def test_summary_has_the_promised_keys(demo: Path) -> None:
    summary = json.loads((demo / "summary.json").read_text(encoding="utf-8"))
    promised: dict[str, Sequence[str]] = {
        "bits_per_byte": ("model", "unigram", "bigram", "n", "ci95"),
        "concepts": ("count", "auc_macro", "map", "base_rate", "num_scored", "auc_within_source", "auc_source_oracle"),
        "contribution": ("known", "discovered", "residual", "known_context", "n"),
        "deletion_nats": ("known", "discovered", "residual", "shuffled", "random", "n"),
        "decomposition": ("max_abs_error", "dtype"),
        "steering": ("before", "after", "control", "perplexity_ratio", "distinct2_ratio", "num_concepts", "curve"),
        "recall": ("at10", "chance", "bm25", "n"),
    }
    for group, keys in promised.items():
        assert set(keys) <= set(summary[group]), group
    for part in ("known", "discovered", "residual", "shuffled", "random"):
        assert {"resample", "mean", "zero", "ci95"} <= set(summary["deletion_nats"][part])
    for variant in ("before", "after", "control"):
        for arm in ("target", "unsteered", "random", "suppressed"):
            assert {"rate", "n", "ci95"} <= set(summary["steering"][variant][arm])
    assert set(summary["stages"]) == set(STAGES)
    assert summary["seed"] == 0
    assert summary["wall_s"] > 0
    assert summary["peak_rss_bytes"] < 4e9
    assert summary["decomposition"]["max_abs_error"] < 1e-4


def test_report_stands_alone(demo: Path) -> None:
    page = (demo / "report.html").read_text(encoding="utf-8")
    assert "Content-Security-Policy" in page
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "")


def test_rerun_does_nothing_anew(demo: Path, texts: Path) -> None:
    before = ids(demo)
    started = time.monotonic()
    done = vitrail("demo", "--corpus", str(texts), "--minutes", MINUTES, "--out", str(demo), "--json")
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stderr.count("done before") == len(STAGES)
    assert ids(demo) == before
    assert json.loads(done.stdout) == json.loads((demo / "summary.json").read_text(encoding="utf-8"))
    assert time.monotonic() - started < 120


def test_without_a_terminal_it_says_how_to_ask_the_model(demo: Path, texts: Path) -> None:
    done = vitrail("demo", "--corpus", str(texts), "--minutes", MINUTES, "--out", str(demo))
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"vitrail serve {demo}/model --index {demo}/index" in done.stdout


def test_on_a_terminal_it_serves_the_model(demo: Path, texts: Path) -> None:
    ours, theirs = pty.openpty()
    words = command("demo", "--corpus", str(texts), "--minutes", MINUTES, "--out", str(demo))
    with subprocess.Popen(words, stdout=theirs, stderr=subprocess.PIPE, text=True) as process:
        os.close(theirs)
        assert process.stderr is not None
        address = next(line.split()[2] for line in process.stderr if line.startswith("look at"))
        with urlopen(f"{address}/v1/concepts?query=&limit=3", timeout=60) as answer:
            assert len(json.load(answer)["data"]) == 3
        with urlopen(f"{address}/report.html", timeout=60) as answer:
            assert answer.read() == (demo / "report.html").read_bytes()
        process.send_signal(signal.SIGINT)
        process.stderr.read()
    os.close(ours)
    assert process.returncode == 0


@pytest.mark.parametrize(("stage", "how"), [("atlas", signal.SIGINT), ("base", signal.SIGKILL)])
def test_interrupted_equals_uninterrupted(
    stage: str, how: signal.Signals, demo: Path, texts: Path, tmp_path: Path
) -> None:
    """A run stopped on its way, and started again, ends with the same ids."""
    out = tmp_path / "run"
    words = command("demo", "--corpus", str(texts), "--minutes", MINUTES, "--out", str(out))
    with subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if f" {stage} " in line:
                break
        time.sleep(0.5)  # into the stage, or just past it where the machine is fast
        process.send_signal(how)
        last_words = process.stderr.read()
    assert process.returncode == (130 if how is signal.SIGINT else -how)
    assert ("run the same command again" in last_words) == (how is signal.SIGINT)
    assert not (out / "answers").exists()
    done = vitrail(*words[3:])
    assert done.returncode == 0, done.stderr[-3000:]
    assert ids(out) == ids(demo)
    assert not [path for path in out.iterdir() if path.name.startswith(".")]


def test_number_of_threads_changes_no_data_artifact(demo: Path, texts: Path, tmp_path: Path) -> None:
    for name, words in {
        "corpus": ("corpus", "import", str(texts)),
        "atlas": ("atlas", "build", str(tmp_path / "corpus"), *TOY_ATLAS),
        "annotated": ("atlas", "annotate", str(tmp_path / "corpus"), "--atlas", str(tmp_path / "atlas")),
    }.items():
        done = vitrail(*words, "--out", str(tmp_path / name), env={"OMP_NUM_THREADS": "1"})
        assert done.returncode == 0, done.stderr
        assert read_manifest(tmp_path / name).id == read_manifest(demo / name).id


def test_generate_save_and_explain(demo: Path, tmp_path: Path) -> None:
    model, trace = str(demo / "model"), str(tmp_path / "trace")
    words = ("generate", model, "The with statement", "--max-new-tokens", "24", "--save", trace, "--json")
    answer = json.loads(vitrail(*words).stdout)
    assert len(answer["token_ids"]) == 24
    shown = vitrail("explain", model, trace, "--index", str(demo / "index"))
    assert shown.returncode == 0, shown.stderr
    for word in ("Inputs", "Concepts", "certificate"):
        assert word.casefold() in shown.stdout.casefold()
    assert "\x1b[" not in shown.stdout
    why = json.loads(vitrail("explain", model, trace, "--index", str(demo / "index"), "--json").stdout)
    assert why["certificate"]["passed"]
    assert why["text"] == answer["text"]


def test_steered_generation_names_an_unknown_concept(demo: Path) -> None:
    cards = json.loads(vitrail("atlas", "search", str(demo / "model"), "class", "--json").stdout)["concepts"]
    name = cards[0]["name"]
    good = vitrail("generate", str(demo / "model"), "The", "--steer", f"{name}=+1.0", "--max-new-tokens", "8")
    assert good.returncode == 0, good.stderr
    done = vitrail("generate", str(demo / "model"), "The", "--steer", f"{name}x=+1.0")
    assert done.returncode == 2
    assert name in done.stderr


def test_prompt_longer_than_the_context(demo: Path) -> None:
    done = vitrail("generate", str(demo / "model"), "word " * 2000)
    assert done.returncode == 2
    (line,) = done.stderr.strip().splitlines()
    assert "256" in line


def test_index_of_another_model_is_refused(demo: Path) -> None:
    words = ("index", "query", str(demo / "base"), "the with statement", "--index", str(demo / "index"))
    done = vitrail(*words)
    assert done.returncode == 2
    assert "model" in done.stderr
    found = vitrail("index", "query", str(demo / "model"), *words[3:], "--json")
    assert len(json.loads(found.stdout)["hits"]) == 5


def test_lineage_reaches_the_text(demo: Path) -> None:
    done = vitrail("info", str(demo / "index"), "--json")
    kinds = {row["kind"] for row in json.loads(done.stdout)["lineage"]}
    assert {"index", "model", "packed", "annotated", "atlas", "corpus"} <= kinds


def test_metrics_command(demo: Path) -> None:
    done = vitrail("metrics", str(demo / "model"), str(demo / "packed"), "--sequences", "4", "--json")
    assert json.loads(done.stdout)["bits_per_byte"]["n"] == 4


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--max-new-tokens", "0"], "max_new_tokens"),
        (["--top-p", "1.5"], "top_p"),
        (["--temperature", "nan"], "temperature"),
        (["--seed", "-1"], "--seed"),
        (["--device", "meta"], "meta"),
        (["--steer", "a\nb=1"], "'a b'"),
    ],
)
def test_value_out_of_range_is_one_line(flags: list[str], message: str, demo: Path) -> None:
    """These were tracebacks of the libraries that met the value first."""
    done = vitrail("generate", str(demo / "model"), "The", *flags)
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.strip().splitlines()
    assert message in line


def test_prompt_is_not_taken_for_a_path(demo: Path) -> None:
    """A long prompt is no file name to the system, and an empty one no folder."""
    model = load(demo / "model")
    for prompt in ("", "word" * 80):
        assert model.generate(prompt, max_new_tokens=1).token_ids
        done = vitrail("explain", str(demo / "model"), prompt, "--max-new-tokens", "1", "--json")
        assert json.loads(done.stdout)["prompt"].endswith(prompt)


def test_trace_is_explained_by_its_own_model_alone(demo: Path) -> None:
    """Another model of the same vocabulary explained it without a word."""
    done = vitrail("explain", str(demo / "base"), str(demo / "trace"))
    assert done.returncode == 2
    assert "name the model that generated it" in done.stderr
    done = vitrail("explain", str(demo / "model"), str(demo / "trace"), "--steer", "#1=+1")
    assert done.returncode == 2
    assert "--steer" in done.stderr


@pytest.mark.parametrize(("file", "message"), [("tokenizer", "tokenizer"), ("concepts.parquet", "known concepts")])
def test_parts_of_another_model_are_refused(file: str, message: str, demo: Path, tmp_path: Path) -> None:
    """A tokenizer with fewer tokens loaded without a word, and the text was nonsense."""
    copy = tmp_path / "model"
    shutil.copytree(demo / "model", copy)
    if file == "tokenizer":
        train_tokenizer(["another text"] * 3, 300).save(copy / file)
    else:
        ConceptLibrary(ConceptLibrary.load(copy).cards[1:]).save(copy / file)
    with pytest.raises(CheckpointError, match=message):
        load(copy)
