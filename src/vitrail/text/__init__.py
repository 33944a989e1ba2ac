"""Text: tokenizers."""

from vitrail.text.chat import Message
from vitrail.text.controls import ControlIds
from vitrail.text.loading import load_tokenizer, missing_tokenizer
from vitrail.text.tokenizer import Tokenizer
from vitrail.text.training import train_tokenizer

__all__ = ["ControlIds", "Message", "Tokenizer", "load_tokenizer", "missing_tokenizer", "train_tokenizer"]
