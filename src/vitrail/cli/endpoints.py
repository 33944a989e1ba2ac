"""What commands that may ask a language model share: its address, its key and its prompts.

The address (`--endpoint.…`) enters no artifact and the key is read from the environment here, and only here.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vitrail.atlas.llm import Endpoint, load_prompts
from vitrail.cli.output import progress_console
from vitrail.errors import ConfigError
from vitrail.settings import read_yaml


def split_endpoint(
    flags: Mapping[str, Any], config: Path | None, prompts: Path | None, wanted: Sequence[str] = ("tags", "concept")
) -> tuple[Endpoint | None, dict[str, Any]]:
    """Part the address of a language model from the settings that enter an artifact.

    Args:
        flags: dotted key → value; those below `endpoint.` are the address.
        config: YAML file of settings with a group `endpoint`; flags go before it.
        prompts: folder of edited prompts; they become settings below `llm.`.
        wanted: which of them the command uses; those of a build by default.

    Returns:
        the endpoint with its key, or None if none is named; all other settings, dotted.

    Raises:
        ConfigError: a wrong setting, a key where none belongs, or a named variable that is not set.
    """
    values: dict[str, Any] = {**(read_yaml(config) if config else {})}
    address = values.pop("endpoint", None) or {}
    if not isinstance(address, dict):
        raise ConfigError(f"{config}: 'endpoint' is a group of settings (url, api_key_env …), not {address!r}")
    address |= {key.removeprefix("endpoint."): value for key, value in flags.items() if key.startswith("endpoint.")}
    if prompts is not None:
        values |= {f"llm.{name}": prompt.model_dump() for name, prompt in load_prompts(prompts, wanted).items()}
    values |= {key: value for key, value in flags.items() if not key.startswith("endpoint.")}
    if "api_key" in address:
        raise ConfigError("endpoint.api_key: keys do not belong in files or flags; name a variable: api_key_env")
    return (Endpoint.parse(address, "endpoint").with_key(os.environ) if address else None), values


def say(line: str) -> None:
    """Show a line about the asking, on stderr.

    Args:
        line: may quote what a model said, which is no markup.
    """
    progress_console.print(line, markup=False, soft_wrap=True)
