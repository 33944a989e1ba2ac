"""Where a model lies: a directory, or a repository of the Hugging Face Hub, fetched once into its cache.

Only configuration, weights, tokenizer files and tables are fetched; never code.
"""

import re
from collections.abc import Callable
from pathlib import Path

from vitrail.errors import CheckpointError, ConfigError
from vitrail.model.stored import weight_files

_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_WANTED = [
    *("config.json", "*.safetensors", "*.safetensors.index.json", "*.parquet"),
    *("tokenizer.json", "tokenizer_config.json", "tokenizer/*.json", "*.tiktoken", "chat_template.jinja"),
]
_UNWANTED = ["*.py", "*/*.safetensors"]


def find_model(name: str | Path, revision: str | None = None) -> Path:
    """The directory of a model.

    Args:
        name: a directory, or a repository such as `guidelabs/steerling-8b`.
        revision: branch, tag or commit of the repository; None takes the main branch.

    Returns:
        the directory; for a repository the copy in the cache of the Hub, fetched where it is not there yet.

    Raises:
        CheckpointError: a repository that is neither in the cache nor within reach.
        ConfigError: a revision of a directory.
    """
    if not is_repository(name):
        if revision is not None:
            raise ConfigError(f"{name}: a directory has no revision '{revision}'; leave it out")
        return Path(name)
    return _obtained(str(name), revision, _WANTED, _is_whole)


def find_file(name: str | Path, wanted: str) -> Path:
    """A file, or the file of that name in a repository of the Hub.

    Args:
        name: a path, or a repository such as `guidelabs/steerling`.
        wanted: the file's name in a repository.

    Returns:
        its path.

    Raises:
        CheckpointError: a repository that is neither in the cache nor within reach.
    """
    if not is_repository(name):
        return Path(name)
    return _obtained(str(name), None, [wanted], lambda folder: (folder / wanted).is_file()) / wanted


def is_repository(name: str | Path) -> bool:
    """Whether a name can only mean a repository of the Hub: `OWNER/NAME`, and no folder `OWNER` here.

    Args:
        name: what was typed.

    Returns:
        false for everything that may be a path.
    """
    return bool(_REPOSITORY.fullmatch(str(name))) and not Path(name).exists() and not Path(name).parent.exists()


def _is_whole(folder: Path) -> bool:
    try:
        return (folder / "config.json").is_file() and bool(weight_files(folder))
    except CheckpointError:
        return False


def _obtained(name: str, revision: str | None, wanted: list[str], is_whole: Callable[[Path], bool]) -> Path:
    """The copy in the cache where it has all that is wanted, else one fetched now."""
    reason = "the repository does not hold what is needed"
    for is_offline in (True, False):
        try:
            folder = _fetch(name, revision, wanted, is_offline)
            if is_whole(folder):
                return folder
        except (OSError, ValueError) as error:
            reason = f"{type(error).__name__}: {' '.join(str(error).split()).partition('. ')[0][:100]}"
    raise CheckpointError(
        f"{name}: no such directory, and the Hugging Face Hub cannot give it ({reason}); "
        "name a directory, or connect once so that the cache keeps it"
    )


def _fetch(name: str, revision: str | None, wanted: list[str], is_offline: bool) -> Path:
    from huggingface_hub import snapshot_download  # half a second, and only for repositories

    where = snapshot_download(
        name, revision=revision, allow_patterns=wanted, ignore_patterns=_UNWANTED, local_files_only=is_offline
    )
    return Path(where)
