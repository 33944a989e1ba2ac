"""Text: tokenizers."""

from vitrail.text.tokenizer import Tokenizer, train_tokenizer

__all__ = ["Tokenizer", "train_tokenizer"]
