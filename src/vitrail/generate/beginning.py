"""The finished beginning of an answer whose tokens come in any order: its text, and where it ends.

A diffusion model fills a block in the order of its confidence. A reader of text gets the part before the
first gap only, whole characters of it, and nothing that may turn out to be the start of a stop string. What
stands behind the end, a stop string or an end mark, is no part of the text, though it may be filled in first.
"""

import codecs
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from vitrail.text import Tokenizer


@dataclass(frozen=True)
class Gain:
    """What a commit added to the finished beginning.

    Attributes:
        text: new text, free of stop strings; may be empty.
        tokens: ids that follow those known before.
    """

    text: str
    tokens: tuple[int, ...]


class Beginning:
    """Text before the first open position of one answer."""

    def __init__(self, tokenizer: Tokenizer, start: int, stops: Sequence[str], end_ids: Collection[int]) -> None:
        """Begin with nothing.

        Args:
            tokenizer: gives the bytes of tokens.
            start: absolute position of the answer's first token.
            stops: strings that end the text; they are not part of it.
            end_ids: tokens that end it; they are its last.
        """
        self.end = start
        """Absolute position of the first token that is still open."""
        self.is_stopped = False
        """Whether a stop string or an end mark ended the text."""
        self._tokenizer, self._stops, self._end_ids = tokenizer, stops, end_ids
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._filled: dict[int, int] = {}
        self._held = ""

    def add(self, positions: Sequence[int], tokens: Sequence[int]) -> Gain:
        """Take in a commit.

        Args:
            positions: absolute positions.
            tokens: their ids.

        Returns:
            what the beginning gained; where `is_stopped`, the text is over at `end`.
        """
        self._filled |= zip(positions, tokens, strict=True)
        texts, gained = [], []
        while self.end in self._filled and not self.is_stopped:
            token = self._filled.pop(self.end)
            gained.append(token)
            self.end += 1
            texts.append(self._read(self._decoder.decode(self._tokenizer.token_bytes(token))))
            if token in self._end_ids:
                texts.append(self.close())
                self.is_stopped = True
        return Gain("".join(texts), tuple(gained))

    def stops_at(self, positions: Sequence[int], tokens: Sequence[int]) -> int | None:
        """`add`, for what only needs to know where the text is over.

        Args:
            positions: absolute positions.
            tokens: their ids.

        Returns:
            `end` where a stop string or an end mark ended the text.
        """
        self.add(positions, tokens)
        return self.end if self.is_stopped else None

    def close(self) -> str:
        """The rest of the text, once no token will follow.

        Returns:
            what was held back; U+FFFD for a character that stayed incomplete.
        """
        if self.is_stopped:
            return ""
        rest = self._read(self._decoder.decode(b"", final=True))
        return rest + ("" if self.is_stopped else self._held)

    def _read(self, text: str) -> str:
        """Add text; gives what may be shown of it."""
        self._held += text
        places = [place for place in (self._held.find(stop) for stop in self._stops) if place >= 0]
        if places:
            self.is_stopped = True
            return self._held[: min(places)]
        keep = max((_shared(self._held, stop) for stop in self._stops), default=0)
        shown, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return shown


def _shared(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a beginning of `stop`."""
    longest = min(len(text), len(stop) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(stop[:size])), 0)
