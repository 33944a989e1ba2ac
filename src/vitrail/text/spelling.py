"""What the pieces of a vocabulary stand for in bytes.

Vocabularies write bytes in three ways: byte-level ones as printable stand-ins (`Ġthe`), those with byte fallback
as `▁the` and `<0x0A>`, the others cannot write all of them (`##ing`, `▁the`, `[UNK]`). Of the first two the bytes
are exact; of the others they are the likely text.
"""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["byte-level", "byte fallback", "words"]

_SPACE = "▁"
_BYTE_PIECE = re.compile(r"<0x([0-9A-F]{2})>")


def _byte_table() -> dict[str, int]:
    """The printable stand-in of each byte in byte-level vocabularies (as in GPT-2) → the byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


_BYTE_OF = _byte_table()
_STAND_INS = {byte: char for char, byte in _BYTE_OF.items()}


def stand_ins(data: bytes) -> str:
    """Bytes as a byte-level vocabulary writes them.

    Args:
        data: any bytes.

    Returns:
        one printable character a byte.
    """
    return data.decode("latin-1").translate(_STAND_INS)


@dataclass(frozen=True)
class Spelling:
    """How a vocabulary writes text.

    Attributes:
        kind: which of the three ways.
        prefix: before pieces that continue a word (`##`), or empty.
        has_spaces: whether `▁` stands for a space.
        unknown: the piece for what the vocabulary lacks, or None.
    """

    kind: Kind
    prefix: str
    has_spaces: bool
    unknown: str | None

    @classmethod
    def of(cls, file: Mapping[str, Any]) -> "Spelling":
        """The way of a `tokenizer.json`.

        Args:
            file: its content.

        Returns:
            how it writes text.
        """
        model, decoders = file["model"], _types(file.get("decoder"))
        has_bytes = "<0x00>" in _pieces(model) and (bool(model.get("byte_fallback")) or "ByteFallback" in decoders)
        kind: Kind = "byte fallback" if has_bytes else "words"
        if "ByteLevel" in decoders | _types(file.get("pre_tokenizer")):
            kind = "byte-level"
        is_word_piece = model.get("type") == "WordPiece"
        return cls(
            kind=kind,
            prefix=model.get("continuing_subword_prefix") or ("##" if is_word_piece else ""),
            has_spaces=_SPACE in str((file.get("decoder"), file.get("pre_tokenizer"), file.get("normalizer"))),
            unknown=_unknown(model),
        )

    def bytes_of(self, piece: str, is_added: bool) -> bytes:
        """What a piece stands for.

        Args:
            piece: of the vocabulary.
            is_added: whether it was added beside the model's own pieces; those are written as they are.

        Returns:
            its bytes.
        """
        if is_added:
            return piece.encode()
        if self.kind == "byte-level":
            return bytes(_BYTE_OF[char] for char in piece) if all(map(_BYTE_OF.__contains__, piece)) else piece.encode()
        if self.kind == "byte fallback" and (byte := _BYTE_PIECE.fullmatch(piece)):
            return bytes([int(byte[1], 16)])
        if self.has_spaces:
            return piece.replace(_SPACE, " ").encode()
        if self.prefix and piece.startswith(self.prefix):
            return piece.removeprefix(self.prefix).encode()
        return (" " + piece if self.prefix else piece).encode()

    def letters(self, piece: str, id_of: Callable[[str], int | None]) -> list[int]:
        """A piece taken apart, for where it may not stand as a whole.

        Args:
            piece: of the vocabulary.
            id_of: id of a piece that may stand in a text, or None.

        Returns:
            ids that write it: its characters, else their bytes, else what stands for the unknown, else nothing.
        """
        ids: list[int] = []
        for place, char in enumerate(piece):
            options: list[list[str]] = [
                [(self.prefix if place else "") + char],
                [f"<0x{byte:02X}>" for byte in char.encode()],
                [] if self.unknown is None else [self.unknown],
            ]
            spelt = ([token_id for part in option if (token_id := id_of(part)) is not None] for option in options)
            ids += next((found for found, option in zip(spelt, options, strict=True) if len(found) == len(option)), [])
        return ids


def _types(part: Any) -> set[str]:
    """Kinds of a component of `tokenizer.json` and of those inside it."""
    if not isinstance(part, Mapping):
        return set()
    inner = [*part.get("decoders", []), *part.get("pretokenizers", [])]
    return {str(part.get("type"))}.union(*map(_types, inner))


def _pieces(model: Mapping[str, Any]) -> Collection[str]:
    vocabulary = model["vocab"]
    return vocabulary if isinstance(vocabulary, Mapping) else {str(piece) for piece, _ in vocabulary}


def _unknown(model: Mapping[str, Any]) -> str | None:
    if isinstance(model["vocab"], Mapping):
        return model.get("unk_token")
    place = model.get("unk_id")
    return None if place is None else str(model["vocab"][place][0])
