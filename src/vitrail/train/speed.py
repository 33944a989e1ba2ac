"""How fast a run is: tokens a second, use of the device (MFU), memory.

MFU is the model's operations a second (`model/flops.py`, without recomputation) over what the device can do: the
published dense bf16 rate of a known GPU, or a matrix product measured at the start on a CPU, whose peak depends on the
cores that are free. These figures hold wall time and stay out of the run's log, which is the same for every machine.
"""

import resource
import time
from collections import deque
from dataclasses import dataclass

import torch

from vitrail.model import ConceptLM
from vitrail.model.flops import training_flops
from vitrail.train.distributed import World
from vitrail.train.masking import expected_noise
from vitrail.train.settings import TrainSettings

_WINDOW = 20
_PEAK_FLOPS = {"H200": 989e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12, "B200": 2250e12, "MI300X": 1307e12}
_CPU_SIDE, _CPU_REPEATS = 1024, 5


@dataclass(frozen=True)
class Speed:
    """The cost of the latest steps.

    Attributes:
        tokens_per_s: over all ranks.
        mfu: share of the devices' operations, or None on an unknown device.
        memory_bytes: peak of this process: of the GPU, or resident on a CPU.
    """

    tokens_per_s: float
    mfu: float | None
    memory_bytes: int

    @property
    def line(self) -> str:
        """Speed in a few words."""
        mfu = "" if self.mfu is None else f", {self.mfu:.0%} MFU"
        return f"{self.tokens_per_s:,.0f} tokens/s{mfu}, {self.memory_bytes / 2**30:.1f} GiB"


class Speedometer:
    """Times the steps of one attempt."""

    def __init__(self, model: ConceptLM, settings: TrainSettings, length: int, world: World) -> None:
        """Know the work and the devices.

        Args:
            model: gives operations per token.
            settings: batch, noise, precision.
            length: tokens of a sequence.
            world: how many devices work.
        """
        self._model, self._settings, self._length, self._world = model, settings, length, world
        self._times: deque[float] = deque([time.monotonic()], maxlen=_WINDOW + 1)
        self._peak = peak_flops(world.device, settings.precision)

    def after(self, share: float) -> Speed:
        """The speed once another step is done.

        Args:
            share: share of training done: the noise level decides how many positions are predicted.

        Returns:
            mean speed of the latest steps, evaluations included.
        """
        self._times.append(time.monotonic())
        seconds = max(self._times[-1] - self._times[0], 1e-9)
        tokens = (len(self._times) - 1) * self._settings.batch_size * self._length
        mfu = None
        if self._peak is not None:
            is_ar = self._model.config.backbone == "ar"
            predicted = 1.0 if is_ar else expected_noise(self._settings.noise, share)
            each = training_flops(self._model.config, self._length, predicted).total
            mfu = tokens / seconds * each / (self._peak * self._world.size)
        return Speed(tokens / seconds, mfu, _peak_memory(self._world.device))


def peak_flops(device: torch.device, precision: str) -> float | None:
    """Operations a second that a device can do at best.

    Args:
        device: a GPU or the CPU.
        precision: of the products, `fp32` or `bf16`.

    Returns:
        a published figure for known GPUs (bf16), a measured one for the CPU, else None.
    """
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        return next((peak for known, peak in _PEAK_FLOPS.items() if known in name), None)
    if device.type != "cpu":
        return None
    factor = torch.ones(_CPU_SIDE, _CPU_SIDE, dtype=torch.bfloat16 if precision == "bf16" else torch.float32)
    best = float("inf")
    for _ in range(_CPU_REPEATS):
        started = time.perf_counter()
        factor @ factor
        best = min(best, time.perf_counter() - started)
    return 2 * _CPU_SIDE**3 / best


def _peak_memory(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
