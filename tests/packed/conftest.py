"""A small tokenizer for the tests of packing."""

import pytest

from tests.packed.annotated import random_chunks
from vitrail.text import Tokenizer, train_tokenizer


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return train_tokenizer([chunk.text for chunk in random_chunks(0, 50)], 331)
