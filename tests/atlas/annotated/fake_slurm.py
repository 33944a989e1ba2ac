"""A cluster of one machine: `sbatch` really runs the script, one process a task, `squeue` says what still runs.

Python scripts put on the PATH; the queue is a folder with one file a job that holds its process number.
"""

import sys
from pathlib import Path

_SBATCH = """
import os, re, subprocess, sys
from pathlib import Path
queue = Path({queue!r})
if (queue / "closed").exists():
    sys.exit("sbatch: error: invalid partition specified")
script = Path(sys.argv[-1]).read_text()
number = len(list(queue.glob("*.job"))) + 1
(queue / f"{{number}}.sh").write_text(script)
last = int(re.search(r"--array=0-(\\d+)", script).group(1)) if "--array" in script else 0
body = "for i in $(seq 0 " + str(last) + "); do SLURM_ARRAY_TASK_ID=$i bash " + str(queue / f"{{number}}.sh") + "; done"
if "merge_stats" in script:
    body = "true"
environment = {{**os.environ, "SLURM_NODELIST": "here", "RUN_OFFSET": "0"}}
with (queue / f"{{number}}.out").open("w") as out:
    process = subprocess.Popen(["bash", "-c", body], stdout=out, stderr=out, env=environment, start_new_session=True)
(queue / f"{{number}}.job").write_text(str(process.pid))
print("Submitted batch job", number)
"""

_SQUEUE = """
import sys
from pathlib import Path
job = Path({queue!r}) / f"{{sys.argv[-1]}}.job"
if not job.exists():
    sys.exit("slurm_load_jobs error: Invalid job id specified")
status = Path("/proc") / job.read_text() / "status"
if status.exists() and "zombie" not in status.read_text():
    print(sys.argv[-1], "debug vitrail R 0:01")
"""

_SRUN = """
import os, sys
words = sys.argv[1:]
command = words.index("launch_pickled_pipeline")
os.execvp(words[command], words[command:])
"""

_SCONTROL = "print('here')"


def install(folder: Path) -> Path:
    """Put the commands into a folder, with an empty queue beside them; returns the folder for the PATH."""
    queue, commands = folder / "queue", folder / "bin"
    queue.mkdir(parents=True)
    commands.mkdir()
    for name, text in {"sbatch": _SBATCH, "squeue": _SQUEUE, "srun": _SRUN, "scontrol": _SCONTROL}.items():
        path = commands / name
        path.write_text(f"#!{sys.executable}\n" + (text.format(queue=str(queue)) if "queue!r" in text else text))
        path.chmod(0o755)
    return commands
