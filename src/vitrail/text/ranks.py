"""Ranks files (tiktoken's format): the vocabulary of a byte-level BPE without its merges, which are found again.

A rank is both the id of a piece and its place in the order of merges. So the merge that made a piece is the last one
of spelling it out with lower ranks only. With the merges it is an ordinary `tokenizer.json`. On cl100k_base that
gives the same ids as the tiktoken library for every text tried (each character of Unicode among them), takes
1.4 s more to load, and needs no further dependency; offsets and export come with it.
"""

import binascii
import itertools
import json
from collections.abc import Mapping

from vitrail.errors import ArtifactError
from vitrail.text.spelling import stand_ins

Ranks = dict[bytes, int]


def read_ranks(data: bytes) -> Ranks:
    """The pieces of a ranks file: one a line, base64 and its rank.

    Args:
        data: content of the file.

    Returns:
        piece → rank.

    Raises:
        ArtifactError: another format, or not all single bytes are there.
    """
    ranks: Ranks = {}
    for number, line in enumerate(data.splitlines(), 1):
        try:
            piece, rank = line.split()
            ranks[binascii.a2b_base64(piece, strict_mode=True)] = int(rank)
        except ValueError as error:
            raise ArtifactError(
                f"line {number} is not 'BASE64 RANK' ({error}); take a ranks file of tiktoken"
            ) from error
    if any(bytes([byte]) not in ranks for byte in range(256)):
        raise ArtifactError("not all 256 bytes are among the pieces; take a whole ranks file of tiktoken")
    return ranks


def tokenizer_file(ranks: Ranks, pattern: str, specials: Mapping[str, int]) -> str:
    """A `tokenizer.json` that reads as the ranks say.

    Args:
        ranks: piece → rank.
        pattern: regular expression of the words that merges stay inside.
        specials: name → id of the control tokens.

    Returns:
        the text of the file.

    Raises:
        ArtifactError: a control token has the id of a piece.

    Cost: 1 s for 100,000 pieces.
    """
    if taken := sorted(set(specials.values()) & set(ranks.values())):
        raise ArtifactError(f"id {taken[0]} of a control token is that of a piece; take the model's own ranks file")
    pieces = {stand_ins(piece): rank for piece, rank in ranks.items()}
    added = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    bytes_only = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    content = {
        "version": "1.0",
        "added_tokens": [{"id": token_id, "content": name, **added} for name, token_id in specials.items()],
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, bytes_only]},
        "decoder": bytes_only,
        "model": {
            "type": "BPE",
            "vocab": {**pieces, **specials},
            "merges": [(stand_ins(left), stand_ins(right)) for left, right in find_merges(ranks)],
            # A word that is a piece as a whole is taken as that, before any merge.
            "ignore_merges": True,
        },
    }
    return json.dumps(content, ensure_ascii=False)


def find_merges(ranks: Ranks) -> list[tuple[bytes, bytes]]:
    """The merge that made each piece, in their order.

    Args:
        ranks: piece → rank.

    Returns:
        pairs of pieces; pieces that no merge makes are left out.
    """
    merges = []
    for piece, rank in sorted(ranks.items(), key=lambda item: item[1]):
        splits = [
            (piece[:place], piece[place:])
            for place in range(1, len(piece))
            if ranks.get(piece[:place], rank) < rank and ranks.get(piece[place:], rank) < rank
        ]
        if len(splits) > 1:
            splits = _last_merge(piece, ranks)
        merges += splits
    return merges


def _last_merge(piece: bytes, ranks: Ranks) -> list[tuple[bytes, bytes]]:
    """The two parts of a piece before its last merge; none where lower ranks do not spell it."""
    rank = ranks[piece]
    parts = [piece[place : place + 1] for place in range(len(piece))]
    while len(parts) > 2:
        pairs = [ranks.get(left + right, rank) for left, right in itertools.pairwise(parts)]
        lowest = min(pairs)
        if lowest >= rank:
            return []
        place = pairs.index(lowest)
        parts[place : place + 2] = [parts[place] + parts[place + 1]]
    return [(parts[0], parts[1])]
