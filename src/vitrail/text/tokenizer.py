"""Byte-level BPE tokenizer with the control tokens of the packed layout (§4.5.2).

Any text survives the round trip, since the alphabet is all 256 bytes. Control tokens are never made from
text: `<|endoftext|>` typed by a user is a dozen ordinary tokens. Ids: control tokens first, then bytes, then
merges. The file is a standard `tokenizer.json`.
"""

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from tokenizers import AddedToken, Encoding, Regex
from tokenizers import Tokenizer as _Backend
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Split
from tokenizers.pre_tokenizers import Sequence as PreTokenizers
from tokenizers.trainers import BpeTrainer

from vitrail.artifacts import atomic_write_bytes
from vitrail.errors import ArtifactError, ConfigError

PAD, BOS, EOS, EOC, MASK = "<|pad|>", "<|bos|>", "<|endoftext|>", "<|endofchunk|>", "<|mask|>"
SPECIALS = (PAD, BOS, EOS, EOC, MASK)

MIN_VOCAB_SIZE = len(SPECIALS) + 256
MAX_VOCAB_SIZE = 2**20
"""Far above any in use; the library ends the process where it cannot reserve the memory asked for."""
FILE_NAME = "tokenizer.json"

# Words with the space before them, numbers of at most four digits (years), runs of signs, white space.
_WORDS = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}{1,4}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


class Tokenizer:
    """Text ↔ token ids.

    Attributes:
        vocab_size: number of ids.
        pad_id: padding.
        bos_id: start of a document.
        eos_id: end of a document (`<|endoftext|>`).
        eoc_id: end of a chunk (`<|endofchunk|>`).
        mask_id: a masked place.
        special_ids: the five above.
    """

    def __init__(self, backend: _Backend) -> None:
        """Use `Tokenizer.load` or `train_tokenizer`.

        Args:
            backend: byte-level tokenizer that holds the control tokens.

        Raises:
            ArtifactError: a control token is missing.
        """
        vocabulary: dict[str, int] = backend.get_vocab()
        if missing := [name for name in SPECIALS if name not in vocabulary]:
            raise ArtifactError(f"tokenizer: lacks the control token {missing[0]}; train a new one")
        ids = [vocabulary[name] for name in SPECIALS]
        backend.encode_special_tokens = True  # control tokens typed in a text are text
        self._backend = backend
        self.vocab_size: int = backend.get_vocab_size()
        self.pad_id, self.bos_id, self.eos_id, self.eoc_id, self.mask_id = ids
        self.special_ids: frozenset[int] = frozenset(ids)
        self._bytes = [self._bytes_of(token_id) for token_id in range(self.vocab_size)]

    def encode(self, text: str) -> list[int]:
        """Token ids of a text; never a control token.

        Args:
            text: any text.

        Returns:
            ids.

        Raises:
            ConfigError: the text holds half a character (a lone surrogate), so it is not Unicode text.
        """
        return list(self._encoding(text).ids)

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Token ids and the characters each comes from.

        Args:
            text: any text.

        Returns:
            ids, and spans [start, stop) in characters; tokens that share a character all span it.

        Raises:
            ConfigError: as of `encode`.
        """
        encoding = self._encoding(text)
        return list(encoding.ids), list(encoding.offsets)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` of many texts at once.

        Args:
            texts: any texts.

        Returns:
            ids of each.

        Cost: about 4 MB of text per core-second.
        """
        encodings = self._backend.encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def decode(self, ids: Iterable[int], keep_special: bool = False) -> str:
        """Text of token ids.

        Args:
            ids: token ids.
            keep_special: show control tokens by name instead of leaving them out.

        Returns:
            the text; bytes that are not UTF-8 (a character cut in two) become U+FFFD.
        """
        if not keep_special:
            return b"".join(self._bytes[token_id] for token_id in ids).decode("utf-8", "replace")
        names = (self.token_name(token_id) for token_id in ids)
        return b"".join(names).decode("utf-8", "replace")

    def token_name(self, token_id: int) -> bytes:
        """Bytes of a token, and for a control token its name.

        Args:
            token_id: an id.

        Returns:
            bytes.
        """
        if token_id in self.special_ids:
            return str(self._backend.id_to_token(token_id)).encode()
        return self._bytes[token_id]

    def token_text(self, token_id: int) -> str:
        """One token for display, its leading space kept.

        Args:
            token_id: an id.

        Returns:
            its text; the name of a control token; U+FFFD for a part of a character.
        """
        return self.token_name(token_id).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        """The exact bytes of one token.

        Args:
            token_id: an id.

        Returns:
            bytes, none for a control token.
        """
        return self._bytes[token_id]

    @property
    def fingerprint(self) -> str:
        """Hash of the vocabulary, merges and rules: equal tokenizers have equal ones."""
        return hashlib.sha256(self._backend.to_str().encode()).hexdigest()

    def save(self, path: Path) -> None:
        """Write `tokenizer.json`.

        Args:
            path: folder; made if it is missing.

        Raises:
            RunFailed: the disk is full.
        """
        path.mkdir(parents=True, exist_ok=True)
        atomic_write_bytes(path / FILE_NAME, self._backend.to_str(pretty=True).encode())

    @classmethod
    def load(cls, path: Path) -> "Tokenizer":
        """Read a saved tokenizer.

        Args:
            path: the folder that holds `tokenizer.json`.

        Returns:
            the tokenizer.

        Raises:
            ArtifactError: missing or damaged, or without the control tokens.
        """
        file = path / FILE_NAME
        try:
            return cls(_Backend.from_str(file.read_text(encoding="utf-8")))
        except OSError as error:
            raise ArtifactError(f"{file}: {error.strerror}; name a folder with a tokenizer") from error
        except ArtifactError as error:
            raise ArtifactError(f"{file}: {error}") from error
        except Exception as error:  # the library raises bare Exception for every fault of the file
            raise ArtifactError(f"{file}: damaged ({error}); build the tokenizer again") from error

    def _encoding(self, text: str) -> Encoding:
        try:
            return self._backend.encode(text, add_special_tokens=False)
        except TypeError as error:  # the library's word for text that UTF-8 cannot carry
            raise ConfigError("the text is not valid Unicode (bytes that are not UTF-8?); retype it") from error

    def _bytes_of(self, token_id: int) -> bytes:
        if token_id in self.special_ids:
            return b""
        return bytes(_BYTE_OF[char] for char in self._backend.id_to_token(token_id) or "")


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Learn a byte-level BPE vocabulary.

    The result depends on how often words occur, not on the order of the texts.

    Args:
        texts: training texts; read once, as a stream.
        vocab_size: ids in all: 5 control tokens, 256 bytes, and merges. A text too short for so many
            merges gives fewer.

    Returns:
        the tokenizer.

    Raises:
        ConfigError: no room for control tokens and bytes, or more than a million ids.

    Cost: about 4 MB of text per core-second.
    """
    if vocab_size < MIN_VOCAB_SIZE:
        raise ConfigError(f"vocab_size = {vocab_size}: at least {MIN_VOCAB_SIZE} ids hold control tokens and bytes")
    if vocab_size > MAX_VOCAB_SIZE:
        raise ConfigError(f"vocab_size = {vocab_size}: at most {MAX_VOCAB_SIZE}")
    backend = _Backend(BPE())
    splits = [Split(Regex(_WORDS), behavior="isolated"), ByteLevel(add_prefix_space=False, use_regex=False)]
    backend.pre_tokenizer = PreTokenizers(splits)
    backend.decoder = ByteLevelDecoder()
    trainer = BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[AddedToken(name, special=True, normalized=False) for name in SPECIALS],
        initial_alphabet=ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    return Tokenizer(backend)


def _byte_table() -> dict[str, int]:
    """The printable stand-in of each byte in byte-level vocabularies (as in GPT-2) → the byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


_BYTE_OF = _byte_table()
