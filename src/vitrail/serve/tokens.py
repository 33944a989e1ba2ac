"""Tokens of an answer as clients see them: texts, log-probabilities, offsets, commits."""

import codecs
import math
from collections.abc import Sequence
from dataclasses import dataclass

from vitrail.generate import Commit
from vitrail.serve.schemas import CommitPart
from vitrail.text import Tokenizer


@dataclass(frozen=True)
class Scored:
    """A token with its log-probability.

    Attributes:
        id: its id.
        logprob: at temperature 1, in nats.
        alternatives: ids and log-probabilities of the most likely tokens of the same place, best first.
        offset: characters of the answer before it.
    """

    id: int
    logprob: float
    alternatives: tuple[tuple[int, float], ...]
    offset: int


class ScoredTokens:
    """Tokens of one answer in the order of the text, given out once their text is."""

    def __init__(self, tokenizer: Tokenizer, num_prompt: int) -> None:
        """Begin with none.

        Args:
            tokenizer: gives their bytes.
            num_prompt: tokens of the prompt, since commits count from the start of the row.
        """
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._found: dict[int, tuple[int, float, tuple[tuple[int, float], ...]]] = {}
        self._pos, self._offset, self._num_chars = num_prompt, 0, 0
        self._waiting: list[Scored] = []

    def add(self, commit: Commit) -> None:
        """Take in a commit.

        Args:
            commit: of the answer.
        """
        rest = commit.alternatives or ((),) * len(commit.tokens)
        self._found |= zip(commit.positions, zip(commit.tokens, commit.logprobs, rest, strict=True), strict=True)

    def read(self, num_tokens: int, text: str) -> list[Scored]:
        """Tokens whose text has been given: none of a stop string, which is no part of the answer.

        Args:
            num_tokens: tokens that the finished beginning gained.
            text: what it gained.

        Returns:
            the tokens, each once.
        """
        for _ in range(num_tokens):
            token, logprob, alternatives = self._found.pop(self._pos)
            self._waiting.append(Scored(token, logprob, alternatives, self._offset))
            self._offset += len(self._decoder.decode(self._tokenizer.token_bytes(token)))
            self._pos += 1
        self._num_chars += len(text)
        given = [token for token in self._waiting if token.offset < self._num_chars]
        self._waiting = self._waiting[len(given) :]
        return given


def commit_part(tokenizer: Tokenizer, commit: Commit, num_prompt: int) -> CommitPart:
    """A commit as clients see it.

    Args:
        tokenizer: names its tokens.
        commit: at absolute positions.
        num_prompt: tokens of the prompt.

    Returns:
        the same from the first token of the answer.
    """
    return CommitPart(
        step=commit.step,
        positions=[pos - num_prompt for pos in commit.positions],
        tokens=token_texts(tokenizer, commit.tokens),
        ids=list(commit.tokens),
        probs=[math.exp(logprob) for logprob in commit.logprobs],
    )


def token_texts(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """Texts of single tokens.

    Args:
        tokenizer: of the model.
        ids: the tokens.

    Returns:
        their texts; U+FFFD for a part of a character, control tokens by name.
    """
    return [tokenizer.token_text(token) for token in ids]
