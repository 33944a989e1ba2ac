"""`vitrail convert`."""

import re
from pathlib import Path
from typing import Annotated

import torch
from cyclopts import Parameter

from vitrail.cli.output import Json, described, emit, working
from vitrail.errors import ConfigError
from vitrail.model import Layout, convert_checkpoint, find_model

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}
_UNITS = {"": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}

To = Annotated[Layout, Parameter(help="released, or huggingface: loadable by transformers too")]
Kept = Annotated[str, Parameter(help="keep, float32, bfloat16, float16 or float64")]


def convert(
    source: Path, out: Path, *, to: To = "released", dtype: Kept = "keep", shard_size: str = "5GiB", json: Json = False
) -> None:
    """Write a checkpoint anew: one file or shards, another dtype, for vitrail or for transformers.

    Example: `vitrail convert guidelabs/steerling-8b runs/steerling --to huggingface`

    Tensors keep their bytes unless a dtype is given. Names of concepts, tokenizer and calibration go along.

    Args:
        source: a model directory, or a repository of the Hugging Face Hub.
        out: directory to make.
        to: layout.
        dtype: of the weights.
        shard_size: largest file of weights, such as 5GiB or 500MB.
        json: print one JSON object.
    """
    if dtype != "keep" and dtype not in _DTYPES:
        raise ConfigError(f"--dtype {dtype}: is not one of keep, {', '.join(_DTYPES)}")
    num_bytes = _bytes(shard_size)
    with working("converting"):
        counts = convert_checkpoint(find_model(source), out, to, _DTYPES.get(dtype), num_bytes)
    emit({"out": str(out), "to": to, "counts": counts}, json, described(out, counts))


def _bytes(size: str) -> int:
    found = re.fullmatch(r"(\d+) ?([a-z]*)", size.strip().lower())
    if found is None or found[2] not in _UNITS:
        raise ConfigError(f"--shard-size {size}: write a number and a unit, such as 5GiB or 500MB")
    return int(found[1]) * _UNITS[found[2]]
