"""What can go wrong because of input, said in one line: what, where, how to mend.

`VitrailError` is the family that the command line turns into a message and an exit code: 2 where the
user can mend the input, 1 where a run failed (`RunFailed`). Anything else is our own mistake and keeps
its traceback.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from difflib import get_close_matches


class VitrailError(Exception):
    """A fault that the user can mend; its text is one clear line."""

    exit_code = 2


class ConfigError(VitrailError):
    """A setting that does not exist or has a wrong value."""


class CorpusError(VitrailError):
    """Raw text that cannot be read or is too little to work with."""


class ArtifactError(VitrailError):
    """A directory that is not the artifact it should be: missing, damaged or of another kind."""


class CheckpointError(ArtifactError):
    """Weights or a model configuration that cannot be loaded as they are."""


class ConceptNotFound(VitrailError):
    """A concept name or id that the library does not hold."""


class PromptTooLong(VitrailError):
    """A prompt that does not fit the context of the model."""


class RunFailed(VitrailError):
    """A run that had to stop (full disk, NaN loss); what was finished before is intact."""

    exit_code = 1


class NonFiniteLogits(RunFailed):
    """A model that gives logits that are NaN or infinite; the answer is abandoned."""


class Stopped(VitrailError):
    """A run that was asked to end (SIGTERM) and has saved where it stands."""

    exit_code = 143


def nearest(name: str, known: Iterable[str], count: int = 3, cutoff: float = 0.5) -> str:
    """A hint that names the closest known words, or an empty string where none is close.

    Args:
        name: what was typed.
        known: the words that exist; one that lists several, as the name of a concept does (`car, cars`), is as close
            as the closest of them.
        count: how many to suggest at most.
        cutoff: how alike a word must be, 0..1 (`difflib`).

    Returns:
        text such as `; did you mean 'cardiology'?`, ready to append to a message.
    """
    called = defaultdict[str, list[str]](list)
    for word in known:
        folded = word.casefold()
        for part in dict.fromkeys([folded, *folded.split(", ")]):
            called[part].append(word)
    close = get_close_matches(name.casefold(), list(called), n=count, cutoff=cutoff)
    return meant(list(dict.fromkeys(word for part in close for word in called[part]))[:count])


def meant(words: Sequence[str]) -> str:
    """A hint that names words.

    Args:
        words: what may have been meant, the likeliest first.

    Returns:
        text such as `; did you mean 'a' or 'b'?`, ready to append to a message; empty without words.
    """
    return "; did you mean " + " or ".join(f"'{word}'" for word in words) + "?" if words else ""
