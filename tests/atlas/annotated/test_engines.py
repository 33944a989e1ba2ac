"""The same pipeline on the other engines: a Slurm cluster made of scripts that really run it, and a real local Ray."""

import os
import signal
import socket
import threading
import time
from pathlib import Path

import pytest

from tests.atlas.annotated.conftest import SHARD_BYTES
from tests.atlas.annotated.fake_slurm import install
from tests.atlas.annotated.sabotage import Fail, Hold, Sabotaged
from vitrail.artifacts import Manifest
from vitrail.atlas import annotate_corpus
from vitrail.atlas.annotated.engines import Engine, Job, RayEngine, SlurmEngine
from vitrail.atlas.resources import Resources
from vitrail.cli.main import main
from vitrail.errors import ConfigError, RunFailed

ROOT = Path(__file__).parents[3]


def annotate(corpus: Path, atlas: Path, out: Path, engine: Engine) -> Manifest:
    return annotate_corpus(corpus, atlas, out, Resources(2), engine, shard_bytes=SHARD_BYTES)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Slurm cluster on the PATH; the folder of its queue."""
    commands = install(tmp_path / "cluster")
    monkeypatch.setenv("PATH", f"{commands}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'src'}:{ROOT}")
    return tmp_path / "cluster" / "queue"


def test_slurm_gives_the_same_artifact(
    corpus: Path, atlas: Path, undisturbed: tuple[Path, Manifest], cluster: Path, tmp_path: Path
) -> None:
    """A shard fails: its own words are told, the others are kept, the next command submits the missing one only.

    Slow: each task is a process that imports all it needs, as on a cluster.
    """
    out = tmp_path / "annotated"
    engine = SlurmEngine("debug", time="00:10:00", cpus=1, memory_gb=3, account="glass", poll_s=0.1)
    with pytest.raises(RunFailed, match=r"shard 1 of 3 failed \(KeyError: 'nothing at 1'\)"):
        annotate(corpus, atlas, out, Sabotaged(Fail((1,)), engine))
    assert annotate(corpus, atlas, out, engine).id == undisturbed[1].id
    scripts = [path.read_text() for path in sorted(cluster.glob("*.sh"))]
    jobs = [script for script in scripts if "merge_stats" not in script]
    assert [script.split("--array=")[1].split("\n")[0] for script in jobs] == ["0-2", "0-0"]
    for line in ("partition=debug", "time=00:10:00", "mem-per-cpu=3G", "account=glass"):
        assert f"#SBATCH --{line}\n" in jobs[0], line
    assert "qos" not in jobs[0]


def test_slurm_job_of_an_earlier_command_is_waited_for(cluster: Path, tmp_path: Path) -> None:
    """A command that was interrupted left its job in the queue: none is submitted beside it."""
    work = tmp_path / "work"
    work.mkdir()
    (cluster / "7.job").write_text(str(os.spawnlp(os.P_NOWAIT, "sleep", "sleep", "1")))
    (work / "slurm_job").write_text("7")
    started = time.monotonic()
    SlurmEngine("debug", poll_s=0.1).run(Job([], 1, work, 1))
    assert time.monotonic() - started > 0.5
    assert not list(cluster.glob("*.sh"))


def test_slurm_job_that_runs_is_left_whole_by_the_next_command(
    corpus: Path, atlas: Path, undisturbed: tuple[Path, Manifest], cluster: Path, tmp_path: Path
) -> None:
    """Interrupted in the midst of a shard: the command used to remove what the running task had written so far."""
    out, engine = tmp_path / "annotated", SlurmEngine("debug", poll_s=0.1)

    def interrupt() -> None:
        while not ((tmp_path / "held").exists() and list(tmp_path.glob(".annotated.work-*/slurm_job"))):
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a worker of pytest-xdist ignores it
    try:
        threading.Thread(target=interrupt, daemon=True).start()
        with pytest.raises(KeyboardInterrupt):
            annotate_corpus(corpus, atlas, out, engine=Sabotaged(Hold(tmp_path), engine))
    finally:
        signal.signal(signal.SIGINT, before)

    def let_go(*_: int) -> None:
        (tmp_path / "go").touch()

    manifest = annotate_corpus(corpus, atlas, out, engine=engine, on_progress=let_go)
    assert manifest.counts == undisturbed[1].counts
    assert len([path for path in cluster.glob("*.sh") if "merge_stats" not in path.read_text()]) == 1


def test_slurm_that_refuses_is_one_line(corpus: Path, atlas: Path, cluster: Path, tmp_path: Path) -> None:
    (cluster / "closed").touch()
    with pytest.raises(RunFailed, match=r"Slurm did not take the job .*; check partition, time and account"):
        annotate(corpus, atlas, tmp_path / "annotated", SlurmEngine("debug"))
    assert not list(tmp_path.glob(".annotated.*"))


def test_machine_without_slurm_says_so(
    corpus: Path, atlas: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="needs 'sbatch' on the PATH"):
        annotate(corpus, atlas, tmp_path / "annotated", SlurmEngine("debug"))


@pytest.mark.filterwarnings("ignore")  # Ray's own, of its sockets and processes
def test_ray_gives_the_same_artifact(
    corpus: Path, atlas: Path, undisturbed: tuple[Path, Manifest], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real local cluster (slow: it takes ten seconds to start); a failed shard is told of, then made."""
    ray = pytest.importorskip("ray")
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'src'}:{ROOT}")
    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=2**27, log_to_driver=False)
    try:
        with pytest.raises(RunFailed, match=r"shard 1 of 3 failed \(KeyError: 'nothing at 1'\)"):
            annotate(corpus, atlas, tmp_path / "annotated", Sabotaged(Fail((1,)), RayEngine(memory_gb=0.5)))
        assert annotate(corpus, atlas, tmp_path / "annotated", RayEngine(memory_gb=0.5)).id == undisturbed[1].id
    finally:
        ray.shutdown()


@pytest.mark.filterwarnings("ignore")
def test_ray_cluster_that_is_not_there_is_one_line(corpus: Path, atlas: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(RunFailed, match=r"no Ray cluster at 127.0.0.1:.*; check the address, or start one"):
            annotate(corpus, atlas, tmp_path / "annotated", RayEngine(address=address))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["slurm", "--partition", "debug"], "--workers says nothing to the engine 'slurm'; leave it out"),
        (["ray", "--address", "auto"], "--workers says nothing to a cluster that runs already"),
    ],
)
def test_workers_of_a_cluster_are_refused(
    corpus: Path, atlas: Path, tmp_path: Path, flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """They used to be passed over without a word."""
    words = [str(corpus), "--atlas", str(atlas), "--out", str(tmp_path / "annotated"), "--workers", "3"]
    with pytest.raises(SystemExit) as ended:
        main(["atlas", "annotate", *words, "--engine", *flags])
    assert ended.value.code == 2
    assert message in " ".join(capsys.readouterr().err.split())
