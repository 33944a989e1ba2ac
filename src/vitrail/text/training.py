"""Training of our own tokenizer: byte-level BPE with the control tokens of the packed layout (§4.5.2).

Ids: control tokens first, then bytes, then merges. The file is a standard `tokenizer.json`.
"""

from collections.abc import Iterable

from tokenizers import AddedToken, Regex
from tokenizers import Tokenizer as Backend
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Split
from tokenizers.pre_tokenizers import Sequence as PreTokenizers
from tokenizers.trainers import BpeTrainer

from vitrail.errors import ConfigError
from vitrail.text.controls import SPECIALS
from vitrail.text.tokenizer import Tokenizer

MIN_VOCAB_SIZE = len(SPECIALS) + 256
MAX_VOCAB_SIZE = 2**20
"""Far above any in use; the library ends the process where it cannot reserve the memory asked for."""

# Words with the space before them, numbers of at most four digits (years), runs of signs, white space.
_WORDS = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}{1,4}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


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
    backend = Backend(BPE())
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
    return Tokenizer.named(backend)
