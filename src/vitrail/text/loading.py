"""From a model directory to its tokenizer, whichever of the three kinds it is.

A model without one still works on ids: `load_tokenizer` gives None, and `missing_tokenizer` says what to put where once
text is asked for.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vitrail.artifacts import read_json
from vitrail.errors import ArtifactError
from vitrail.text.backend import damage_faults, parsed
from vitrail.text.controls import ControlIds, controls_by_name
from vitrail.text.released import RANKS_NAME, RANKS_URL, find_ranks, is_released, released_tokenizer
from vitrail.text.tokenizer import FILE_NAME, SETTINGS_NAME, TEMPLATE_NAME, Tokenizer

_NAMES_NAME = "special_tokens_map.json"
# Code, and what is written on its own or for other software.
_LEFT_OUT = ("auto_map", "chat_template")


def load_tokenizer(
    directory: Path, controls: ControlIds, vocab_size: int, ranks: Path | None = None
) -> Tokenizer | None:
    """The tokenizer of a model.

    Args:
        directory: of the model; `tokenizer/tokenizer.json`, `tokenizer.json`, or, for the released models,
            `cl100k_base.tiktoken` in it or in the cache of tiktoken.
        controls: control ids of the model's configuration.
        vocab_size: ids of the model.
        ranks: ranks file of cl100k_base to take instead; only for models with the released control ids.

    Returns:
        the tokenizer; None where there is nothing to read.

    Raises:
        ArtifactError: damaged, or that of another model.
    """
    if ranks is not None:
        if not is_released(controls):
            raise ArtifactError(
                f"{directory}: has not the control ids of the released models, so no ranks file fits it"
            )
        return released_tokenizer(ranks, controls, vocab_size)
    file = next((file for file in (directory / "tokenizer" / FILE_NAME, directory / FILE_NAME) if file.is_file()), None)
    if file is not None:
        return _read(file, directory, controls, vocab_size)
    found = find_ranks(directory) if is_released(controls) else None
    return None if found is None else released_tokenizer(found, controls, vocab_size)


def missing_tokenizer(directory: Path, controls: ControlIds) -> ArtifactError:
    """What to say when a model without a tokenizer is given text.

    Args:
        directory: of the model.
        controls: control ids of its configuration.

    Returns:
        the error, to be raised.
    """
    if is_released(controls):
        return ArtifactError(
            f"{directory}: no tokenizer; put {RANKS_URL} there as {RANKS_NAME}, or give the prompt as token ids"
        )
    return ArtifactError(f"{directory}: no tokenizer; put its {FILE_NAME} there, or give the prompt as token ids")


def _read(file: Path, directory: Path, controls: ControlIds, vocab_size: int) -> Tokenizer:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ArtifactError(f"{file}: cannot be read ({error}); copy the model's tokenizer again") from error
    places = (file.parent, directory)
    settings = _settings(places)
    try:
        entries = parsed(text).get("added_tokens") or []
        with damage_faults():
            named = controls_by_name({entry["content"]: entry["id"] for entry in entries})
        is_ours = named is not None and not is_released(controls)
        if named is not None and not named.ids <= controls.ids:
            raise ArtifactError(
                f"control ids {sorted(named.ids)} are not those of config.json, {sorted(controls.ids)}; "
                "copy the tokenizer that the model was trained with"
            )
        return Tokenizer(
            text,
            controls,
            vocab_size,
            start_ids=(controls.bos,) if is_ours else None,
            chat_template=_chat_template(places, settings),
            settings=None if is_ours else {key: settings[key] for key in settings if key not in _LEFT_OUT},
        )
    except ArtifactError as error:
        raise ArtifactError(f"{file}: {error}") from error


def _settings(places: Sequence[Path]) -> dict[str, Any]:
    """Names of control tokens and the like, from beside the tokenizer or the model."""
    values: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast"}
    for name in (_NAMES_NAME, SETTINGS_NAME):
        file = next((place / name for place in places if (place / name).is_file()), None)
        if file is not None:
            found = read_json(file)
            if not isinstance(found, Mapping):
                raise ArtifactError(f"{file}: expected a JSON object, got {type(found).__name__}; copy the file again")
            values |= found
    return values


def _chat_template(places: Sequence[Path], settings: Mapping[str, Any]) -> str | None:
    """The template in a file of its own, else the one in the settings, where it may be one of several."""
    for place in places:
        if (place / TEMPLATE_NAME).is_file():
            return (place / TEMPLATE_NAME).read_text(encoding="utf-8")
    found = settings.get("chat_template")
    if isinstance(found, list):
        found = next((entry.get("template") for entry in found if entry.get("name") == "default"), None)
    return found if isinstance(found, str) else None
