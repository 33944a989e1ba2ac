"""Peak memory and time of loading a checkpoint, against the plain way (`load_file`, then `load_state_dict`).

    python benchmarks/loading.py [--gigabytes 2.1] [--folder DIR]

Writes random bf16 checkpoints of the released shape to a temporary folder, then loads each in a fresh process. Memory
is counted above what the process holds after its imports: `anon` is memory of the process itself, `file` are mapped
pages of the checkpoint, which the system can take back at any time; `peak` is the largest sum of both (VmHWM), and
`ratio` is that peak over the bytes of the loaded weights. Prints one line per case.
"""

import argparse
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import torch
from safetensors.torch import load_file

from vitrail.model import ConceptLM, ModelConfig, empty_model, init_model, load_config, load_model, save_model
from vitrail.model.quantized import to_int8

_CASES = [
    ("vitrail", "bfloat16"),
    ("vitrail", "float32"),
    ("vitrail", "int8"),
    ("plain", "bfloat16"),
    ("plain", "float32"),
]


def shape(num_bytes: int) -> ModelConfig:
    """A model with as many layers as fit a number of bytes in bf16; all else has the proportions of the 8 B one."""
    base = {
        "width": 2048,
        "num_heads": 16,
        "num_kv_heads": 2,
        "num_concepts": 4216,
        "num_discovered": 12649,
        "discovered_rank": 128,
    }
    one, two = (_size(ModelConfig(num_layers=n, **base)) for n in (1, 2))
    return ModelConfig(num_layers=1 + max(0, -(-(num_bytes - one) // (two - one))), **base)


def write(config: ModelConfig, folder: Path) -> None:
    save_model(init_model(config, 0).to(torch.bfloat16), folder, max_shard_bytes=512 * 2**20)


def plain(folder: Path, dtype: torch.dtype) -> ConceptLM:
    model = ConceptLM(load_config(folder)).to(dtype)
    tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(path)
    model.load_state_dict(tensors, strict=False)
    return model.eval()


def measure(way: str, dtype: str, folder: Path) -> None:
    if dtype == "int8":  # so that its import is not counted
        to_int8(torch.ones(8, 8))
    before, watch = _status("VmRSS"), _Watch()
    start = time.process_time()
    with watch:
        if way == "plain":
            model = plain(folder, getattr(torch, dtype))
        else:
            is_int8 = dtype == "int8"
            model = load_model(folder, dtype=None if is_int8 else getattr(torch, dtype), int8=is_int8)
    cpu_s = time.process_time() - start
    num_bytes = sum(_bytes_of(parameter) for parameter in model.parameters())
    peak = (_status("VmHWM") - before) * 1024
    anon, file = watch.anon * 1024, watch.file * 1024
    print(
        f"{way:<8} {dtype:<9} weights {num_bytes / 1e9:5.2f} GB  peak {peak / 1e9:5.2f} GB"
        f"  ratio {peak / num_bytes:4.2f}  anon {anon / 1e9:5.2f}  file {file / 1e9:5.2f}  {cpu_s:5.1f} cpu-s"
    )


class _Watch:
    """The largest growth of a process's own memory and of its mapped files, looked at every 2 ms."""

    def __enter__(self) -> None:
        self._own, self._mapped = _status("RssAnon"), _status("RssFile")
        self.anon = self.file = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        while True:
            self.anon = max(self.anon, _status("RssAnon") - self._own)
            self.file = max(self.file, _status("RssFile") - self._mapped)
            if self._ended.wait(0.002):
                return


def _status(field: str) -> int:
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field + ":"))
    return int(line.split()[1])


def _bytes_of(parameter: torch.Tensor) -> int:
    if type(parameter.data) is torch.Tensor:
        return parameter.nbytes
    return sum(getattr(parameter, name).nbytes for name in ("qdata", "scale"))


def _size(config: ModelConfig) -> int:
    return 2 * sum(parameter.numel() for parameter in empty_model(config).parameters())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=2.1)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        measure(*options.one, options.folder)
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        config = shape(int(options.gigabytes * 1e9))
        write(config, Path(name))
        print(f"{config.num_layers} layers of width {config.width}, torch {torch.__version__}", flush=True)
        for case in _CASES:
            subprocess.run([sys.executable, __file__, "--folder", name, "--one", *case], check=True)


if __name__ == "__main__":
    main()
