"""Settings: frozen, keyword-only models that refuse unknown keys and name the nearest one.

Every configurable part keeps its `Settings` subclass beside it. A run's settings come from defaults,
a YAML file, and dotted overrides (`model.width=256`), in that order, and are stored in the artifact.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from vitrail.errors import ConfigError, nearest

# Not `Self`: the checker of shape annotations decorates single methods and cannot resolve it there.
S = TypeVar("S", bound="Settings")

MAX_SEED = 2**32 - 1
Seed = Annotated[int, Field(ge=0, le=MAX_SEED)]
"""A seed that every generator in use takes."""


class Settings(BaseModel):
    """Base of all settings: frozen, no unknown keys, JSON-serialisable."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @classmethod
    def parse(cls: type[S], values: Mapping[str, Any], where: str = "settings") -> S:
        """Validate a nested mapping.

        Args:
            values: nested plain values.
            where: what to call the origin in messages (a file name, "flags").

        Returns:
            the settings.

        Raises:
            ConfigError: one line that names the key, what is wrong with it, and the nearest known key.
        """
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            raise ConfigError(f"{where}: {_first_fault(cls, error)}") from error

    @classmethod
    def load(cls: type[S], path: Path | None = None, overrides: Mapping[str, Any] | None = None) -> S:
        """Defaults, then a YAML file, then dotted overrides.

        Args:
            path: YAML file, or None for defaults.
            overrides: dotted key → value, such as `{"model.width": 256}`.

        Returns:
            the settings.

        Raises:
            ConfigError: the file is missing or not YAML, or a key or value is wrong.
        """
        values = read_yaml(path) if path else {}
        for key, value in (overrides or {}).items():
            _put(values, key.split("."), value)
        return cls.parse(values, where=str(path) if path else "flags")


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file.

    Args:
        path: the file.

    Returns:
        its content as plain values.

    Raises:
        ConfigError: missing, unreadable, not YAML, or not a mapping.
    """
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; name a readable YAML file") from error
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        problem = " ".join(str(error).split())
        raise ConfigError(f"{path}: not valid YAML ({problem})") from error
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: expected a mapping of settings, got {type(values).__name__}")
    return values


def _put(values: dict[str, Any], keys: list[str], value: Any) -> None:
    for key in keys[:-1]:
        inner = values.setdefault(key, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"setting '{'.'.join(keys)}': '{key}' is a value, not a group")
        values = inner
    values[keys[-1]] = value


def _first_fault(cls: type[BaseModel], error: ValidationError) -> str:
    fault = error.errors()[0]
    path = [str(part) for part in fault["loc"]]
    if fault["type"] == "extra_forbidden":
        known = _fields_at(cls, path[:-1])
        return f"unknown setting '{'.'.join(path)}'" + (nearest(path[-1], known) or f"; known: {', '.join(known)}")
    place = f"setting '{'.'.join(path)}' = {fault['input']!r}: " if path else ""
    message = fault["msg"].removeprefix("Value error, ")
    return place + message[:1].lower() + message[1:]


def _fields_at(cls: type[BaseModel], path: list[str]) -> list[str]:
    """Names of the settings in a group; a number in the path is a place in a list of groups."""
    for part in path:
        if part.isdigit():
            continue
        field = cls.model_fields.get(part)
        inner = _group_in(field.annotation) if field else None
        if inner is None:
            return []
        cls = inner
    return list(cls.model_fields)


def _group_in(annotation: Any) -> type[BaseModel] | None:
    """The group that an annotation holds: itself, or within `| None` or a tuple."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for inner in get_args(annotation) if (found := _group_in(inner))), None)
