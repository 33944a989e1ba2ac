"""What the public reference does with text, where it differs from us (spec of the released checkpoints, §13).

It has two tokenizers. That of its package reads names of control tokens as text, puts start and end around a text, and
leaves control tokens out of what it decodes. That of the Hub turns the names into control tokens, adds nothing, and
shows them. Both stop at ids that no token has. For comparisons only: the second lets a user type control tokens.
"""

from collections.abc import Sequence

from vitrail.errors import ConfigError
from vitrail.text.tokenizer import Tokenizer


def encode_like_package(tokenizer: Tokenizer, text: str, add_special_tokens: bool = True) -> list[int]:
    """Ids as the reference's package gives them.

    Args:
        tokenizer: of the model.
        text: any text; names of control tokens are text.
        add_special_tokens: put the start before and the end after it.

    Returns:
        ids.
    """
    ids = tokenizer.encode(text)
    return [tokenizer.bos_id, *ids, tokenizer.eos_id] if add_special_tokens else ids


def encode_like_hub(tokenizer: Tokenizer, text: str) -> list[int]:
    """Ids as the tokenizer of the Hub gives them.

    Args:
        tokenizer: of the model.
        text: trusted text; names of the model's control tokens become these.

    Returns:
        ids.
    """
    return tokenizer.encode_with_controls(text, tokenizer.controls.ids)


def decode_like_package(tokenizer: Tokenizer, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
    """Text as the reference's package gives it.

    Args:
        tokenizer: of the model.
        ids: token ids.
        skip_special_tokens: leave control tokens out.

    Returns:
        the text.

    Raises:
        ConfigError: an id that no token has.
    """
    for token_id in ids:
        if not 0 <= token_id < tokenizer.vocab_size or token_id in tokenizer.unused_ids:
            raise ConfigError(f"id {token_id} is no token of this model; the reference cannot decode it")
    return tokenizer.decode(ids, keep_special=not skip_special_tokens)


def decode_like_hub(tokenizer: Tokenizer, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
    """Text as the tokenizer of the Hub gives it.

    Args:
        tokenizer: of the model.
        ids: token ids.
        skip_special_tokens: leave control tokens out.

    Returns:
        the text.

    Raises:
        ConfigError: an id that no token has.
    """
    return decode_like_package(tokenizer, ids, skip_special_tokens)
