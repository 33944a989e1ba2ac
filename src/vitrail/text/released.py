"""The tokenizer of the released checkpoints: cl100k_base, and control tokens at ids computed after it.

The release has no vocabulary file. The ranks are a public file of the tiktoken library, which is read from beside the
model or from that library's cache, and recognised by its hash; nothing is fetched.
"""

import hashlib
import os
import tempfile
from pathlib import Path

from vitrail.errors import ArtifactError
from vitrail.text.controls import BOS, EOC, EOS, MASK, PAD, ControlIds
from vitrail.text.ranks import read_ranks, tokenizer_file
from vitrail.text.tokenizer import Tokenizer

RANKS_NAME = "cl100k_base.tiktoken"
RANKS_URL = f"https://openaipublic.blob.core.windows.net/encodings/{RANKS_NAME}"
RANKS_SHA256 = "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7"
CACHE_VARIABLES = ("TIKTOKEN_CACHE_DIR", "DATA_GYM_CACHE_DIR")

# Contractions, words with the sign before them, up to three digits, runs of signs, line ends, white space.
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
BASE = ControlIds(pad=100277, bos=100278, eos=100257, eoc=100279, mask=100280)
_FURTHER = {"<|fim_prefix|>": 100258, "<|fim_middle|>": 100259, "<|fim_suffix|>": 100260, "<|endofprompt|>": 100276}
_HEADERS = ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")

CHAT_TEMPLATE = (
    "{% for message in messages %}<|start_header_id|>{{ message['role'] }}<|end_header_id|>\n\n"
    "{{ message['content'] }}<|endofchunk|><|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
"""What `HeaderTemplate` writes, for other programs that read a saved tokenizer."""


def is_released(controls: ControlIds) -> bool:
    """Whether a model has the control ids of the release, base or instruct.

    Args:
        controls: of the model.

    Returns:
        true where the five common ones are the released ones.
    """
    return _common(controls) == _common(BASE)


def find_ranks(directory: Path) -> Path | None:
    """The ranks file of cl100k_base on this machine.

    Args:
        directory: of the model.

    Returns:
        beside the model, or in the cache of tiktoken; None where there is none.
    """
    cached = hashlib.sha1(RANKS_URL.encode(), usedforsecurity=False).hexdigest()
    caches = [Path(os.environ[name]) for name in CACHE_VARIABLES if os.environ.get(name)]
    places = [
        *(folder / RANKS_NAME for folder in (directory, directory / "tokenizer")),
        *(folder / cached for folder in (directory, *caches, Path(tempfile.gettempdir()) / "data-gym-cache")),
    ]
    return next((place for place in places if place.is_file()), None)


def released_tokenizer(ranks: Path, controls: ControlIds, vocab_size: int) -> Tokenizer:
    """The tokenizer of a released model.

    Args:
        ranks: the ranks file of cl100k_base.
        controls: of the model; with the three of messages it is the instruct one.
        vocab_size: ids of the model.

    Returns:
        the tokenizer.

    Raises:
        ArtifactError: not that file, or too few ids.

    Cost: 2 s.
    """
    try:
        data = ranks.read_bytes()
    except OSError as error:
        raise ArtifactError(f"{ranks}: {error.strerror}; name the ranks file of cl100k_base ({RANKS_URL})") from error
    found = hashlib.sha256(data).hexdigest()
    if found != RANKS_SHA256:
        raise ArtifactError(
            f"{ranks}: not the ranks file of cl100k_base (sha256 {found[:12]}…, wanted {RANKS_SHA256[:12]}…); "
            f"fetch {RANKS_URL} again"
        )
    names = released_names(controls)
    chat = (controls.start_header, controls.end_header, controls.eot)
    try:
        return Tokenizer(
            tokenizer_file(read_ranks(data), PATTERN, names),
            controls,
            vocab_size,
            chat_template=None if None in chat else CHAT_TEMPLATE,
            settings={
                "tokenizer_class": "PreTrainedTokenizerFast",
                "pad_token": PAD,
                "bos_token": BOS,
                "eos_token": EOS,
                "mask_token": MASK,
            },
        )
    except ArtifactError as error:
        raise ArtifactError(f"{ranks}: {error}") from error


def released_names(controls: ControlIds) -> dict[str, int]:
    """Names of all control tokens of a released model.

    Args:
        controls: of the model.

    Returns:
        name → id: 9 of them, or 12 for the instruct model.
    """
    common = dict(zip((PAD, BOS, EOS, EOC, MASK), _common(controls), strict=True))
    headers = zip(_HEADERS, (controls.start_header, controls.end_header, controls.eot), strict=True)
    present = {name: token_id for name, token_id in headers if token_id is not None}
    return dict(sorted({**common, **_FURTHER, **present}.items(), key=lambda item: item[1]))


def _common(controls: ControlIds) -> tuple[int, ...]:
    return controls.pad, controls.bos, controls.eos, controls.eoc, controls.mask
