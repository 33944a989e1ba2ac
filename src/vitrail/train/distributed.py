"""Many processes as one run: who is who, sums over all, and parameters in shards (FSDP2).

A run is started by `torchrun`, which gives every process its rank. Each rank takes its share of the sequences
of the global batch; draws depend on (seed, step) alone, counts and sums are added up over ranks, and the
gradient is divided once by the global counts: the number of ranks decides only who does the work.

Parameters, gradients and optimiser state lie in equal shards on all ranks. Every block is one group of
parameters, gathered just before it runs; embedding, norms and concept heads are the root's group, gathered for
the whole step, since the objective reads their rows directly.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from vitrail.errors import ConfigError
from vitrail.model import ConceptLM

_T = TypeVar("_T")
_CPU = torch.device("cpu")
_TIMEOUT = timedelta(minutes=30)


@dataclass(frozen=True)
class World:
    """The processes of a run, seen from one of them.

    Attributes:
        rank: 0..size-1.
        size: how many processes.
        device: where this one computes.
    """

    rank: int = 0
    size: int = 1
    device: torch.device = _CPU

    @property
    def is_main(self) -> bool:
        """Whether this process writes the log and the artifact."""
        return self.rank == 0

    def part(self, num_rows: int) -> slice:
        """The sequences of a global batch that are this rank's.

        Args:
            num_rows: sequences of the batch, a multiple of `size`.

        Returns:
            a contiguous share.
        """
        each = num_rows // self.size
        return slice(self.rank * each, (self.rank + 1) * each)

    def total(self, values: Sequence[float]) -> list[float]:
        """Sums over all ranks, in double precision.

        Args:
            values: as many on every rank.

        Returns:
            the sums, equal everywhere.
        """
        if self.size == 1:
            return list(values)
        sums = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(sums)
        return [float(value) for value in sums]

    def totals(self, values: dict[str, float]) -> dict[str, float]:
        """Sums over all ranks, by name.

        Args:
            values: the same names on every rank.

        Returns:
            the sums, equal everywhere.
        """
        names = sorted(values)
        sums = dict(zip(names, self.total([values[name] for name in names]), strict=True))
        return {name: sums[name] for name in values}

    def shared(self, value: _T) -> _T:
        """What rank 0 has.

        Args:
            value: plain Python values; those of other ranks are ignored.

        Returns:
            rank 0's value on every rank.
        """
        if self.size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def wait(self) -> None:
        """Until every rank is here."""
        if self.size > 1:
            dist.barrier()


@contextmanager
def joined(device: str = "auto") -> Iterator[World]:
    """Join the processes that `torchrun` started; alone without it.

    Args:
        device: auto, cpu or cuda; every process takes the GPU of its local rank.

    Yields:
        the world.

    Raises:
        ConfigError: a device that is not there.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    rank, local = int(os.environ.get("RANK", "0")), int(os.environ.get("LOCAL_RANK", "0"))
    chosen = _device(device, local)
    if size == 1:
        yield World(device=chosen)
        return
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    # Checkpoints are staged and counts are summed on the CPU whatever the device.
    dist.init_process_group("cpu:gloo,cuda:nccl" if chosen.type == "cuda" else "gloo", timeout=_TIMEOUT)
    try:
        yield World(rank, size, chosen)
    finally:
        dist.destroy_process_group()


def _device(name: str, local_rank: int) -> torch.device:
    is_there = torch.cuda.is_available()
    if name not in ("auto", "cpu", "cuda"):
        raise ConfigError(f"--device {name}: training runs on cpu or cuda; choose one, or auto")
    if name == "cuda" and not is_there:
        raise ConfigError("--device cuda: no CUDA device is available; use --device cpu")
    if name == "cpu" or not is_there:
        return torch.device("cpu")
    if local_rank >= torch.cuda.device_count():
        raise ConfigError(
            f"local rank {local_rank}: this machine has {torch.cuda.device_count()} GPUs; start fewer processes on it"
        )
    return torch.device("cuda", local_rank)


class Root(nn.Module):
    """The root of the shards: whatever reads the model runs inside its forward, where its own group is whole."""

    def __init__(self, model: ConceptLM) -> None:
        """Hold the model.

        Args:
            model: not yet in shards.
        """
        super().__init__()
        self.model = model

    def forward(self, work: Callable[[], _T]) -> _T:
        """Do the work; a backward through what it returns is followed by the exchange of gradients.

        Args:
            work: runs the model.

        Returns:
            what the work gives.
        """
        return work()

    def look(self, work: Callable[[], _T]) -> _T:
        """Do work that is not followed by a backward, and give the memory back.

        Args:
            work: runs the model without gradients; every rank runs equally many forwards.

        Returns:
            what the work gives.
        """
        result: _T = self(work)
        if isinstance(self, FSDPModule):
            self.reshard()
        return result


def shard(root: Root, world: World, *, is_half: bool) -> None:
    """Spread the parameters over the ranks; nothing is done for one rank.

    Gradients are summed over ranks, not averaged: the loss is divided by global counts already.

    Args:
        root: holds the model; its blocks become groups of their own.
        world: the ranks.
        is_half: gather and run the blocks in bf16 on GPUs, where autocast would cast them anyway.
    """
    if world.size == 1:
        return
    policy = MixedPrecisionPolicy()
    if is_half and world.device.type == "cuda":
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in root.model.transformer.blocks:
        fully_shard(block, mp_policy=policy)
    fully_shard(root, reshard_after_forward=False)
    for module in _sharded(root):
        # Gloo knows no scaled sum, so the factor must be left out, and not only set to one.
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)
        # A rank whose sequences carry no label gives no gradient to some heads, and must still take part.
        module.set_reduce_scatter_unused_params(True)


def sync_gradients(root: Root, is_last: bool) -> None:
    """Exchange gradients only after the last micro-batch of a step.

    Args:
        root: of `shard`.
        is_last: whether the next backward is the step's last.
    """
    if isinstance(root, FSDPModule):
        root.set_requires_gradient_sync(is_last)


def whole(tensor: Tensor) -> Tensor:
    """A tensor with all its shards; every rank must call it.

    Args:
        tensor: in shards or not.

    Returns:
        the plain tensor.
    """
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def spread(tensor: Tensor, like: Tensor) -> Tensor:
    """A whole tensor in the shards of another.

    Args:
        tensor: whole, and equal on every rank.
        like: in shards or not.

    Returns:
        the tensor as `like` lies.
    """
    tensor = tensor.to(like.device)
    return distribute_tensor(tensor, like.device_mesh, like.placements) if isinstance(like, DTensor) else tensor


def moved(item: _T, device: torch.device) -> _T:
    """A dataclass with its tensors on a device.

    Args:
        item: a dataclass whose fields are tensors, plain values, or such dataclasses.
        device: where to.

    Returns:
        a copy; the item itself where all is there already.
    """
    if device.type == "cpu":
        return item
    changes: dict[str, Any] = {}
    for field in fields(cast(Any, item)):
        value = getattr(item, field.name)
        if isinstance(value, Tensor):
            changes[field.name] = value.to(device, non_blocking=True)
        elif is_dataclass(value):
            changes[field.name] = moved(value, device)
    return cast(_T, replace(cast(Any, item), **changes))


def _sharded(root: Root) -> Iterator[FSDPModule]:
    for module in root.modules():
        if isinstance(module, FSDPModule):
            yield module
