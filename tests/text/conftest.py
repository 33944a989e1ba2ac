"""One small tokenizer of every kind that a model may come with, made here from a few sentences."""

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Backend

from vitrail.text import ControlIds, Tokenizer, load_tokenizer, train_tokenizer
from vitrail.text.ranks import read_ranks, tokenizer_file
from vitrail.text.released import BASE, PATTERN, released_names

TEXTS = [
    "the cat sat on the mat, the cat slept; <s>",
    "In 1999 and 2001 the graphs were drawn.\n\n    They'll be redrawn.",
    "naïve café 漢字",
    "user assistant system ---- #### \t\t",
] * 4
CHAT = (
    "{{ bos_token }}{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] | trim }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write(folder: Path, backend: Backend, **settings: Any) -> Path:
    """A Hugging Face directory."""
    folder.mkdir(parents=True, exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    if settings:
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def byte_level() -> Backend:
    """Byte-level BPE with its own names, one of them not flagged as special."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.ByteLevel(trim_offsets=True)
    backend.train_from_iterator(
        TEXTS,
        trainers.BpeTrainer(
            vocab_size=320, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=["<|endoftext|>"]
        ),
    )
    names = ["<|im_start|>", "<|im_end|>", "<|hole|>"]
    backend.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in names])
    backend.add_tokens([AddedToken("<the_cat>", normalized=False), AddedToken("CERN", normalized=False)])
    return backend


def unigram(has_bytes: bool = True) -> Backend:
    """Unigram with `▁` for spaces; its own pieces hold the control tokens, which its scores reach."""
    backend = Backend(models.Unigram())
    backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    specials = ["<unk>", "<s>", "</s>", "<mask>", "<piece>"]
    backend.train_from_iterator(
        TEXTS, trainers.UnigramTrainer(vocab_size=120, special_tokens=specials, unk_token="<unk>", show_progress=False)
    )
    values = json.loads(backend.to_str())
    values["added_tokens"] = [entry for entry in values["added_tokens"] if entry["content"] in ("<unk>", "<mask>")]
    if has_bytes:
        values["model"]["vocab"] += [[f"<0x{byte:02X}>", -20.0] for byte in range(256)]
        values["model"]["byte_fallback"] = True
    backend = Backend.from_str(json.dumps(values))
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    start = backend.token_to_id("<s>")
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", start)])
    return backend


def word_piece() -> Backend:
    """WordPiece that splits at white space only, so that `[MASK]` is a word."""
    backend = Backend(models.WordPiece(unk_token="[UNK]"))
    backend.normalizer = normalizers.Lowercase()
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.decoder = decoders.WordPiece()
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[mask]"]
    backend.train_from_iterator(TEXTS, trainers.WordPieceTrainer(vocab_size=150, special_tokens=specials))
    return backend


def reached() -> Backend:
    """Byte-level BPE without words, whose merges make a control token that is an ordinary piece."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"\n"), behavior="isolated")
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [backend.pre_tokenizer, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=330, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    backend.train_from_iterator(["<|mask|>"] * 50, trainer)
    return backend


def controls_of(backend: Backend, *names: str) -> ControlIds:
    """Control ids by the names that a vocabulary uses."""
    vocabulary: dict[str, int] = backend.get_vocab()
    return ControlIds(*(vocabulary[name] for name in names))


def small_ranks() -> bytes:
    """A ranks file as of tiktoken, of a byte-level BPE trained here."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    trainer = trainers.BpeTrainer(vocab_size=380, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    backend.train_from_iterator([*TEXTS, "aaaaaaa aaaaa banana bandana"], trainer)
    values = json.loads(backend.to_str())["model"]
    byte_of = {char: place for place, char in enumerate(_stand_ins())}
    pieces = sorted(values["vocab"].items(), key=lambda item: item[1])
    lines = [base64.b64encode(bytes(byte_of[c] for c in piece)) + b" %d" % rank for piece, rank in pieces]
    return b"\n".join(lines) + b"\n"


def _stand_ins() -> list[str]:
    """The byte-level stand-in of each byte, worked out by the library."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    printable = [char for char in alphabet if ord(char) < 256]
    others = iter(char for char in alphabet if ord(char) >= 256)
    return [chr(byte) if chr(byte) in printable else next(others) for byte in range(256)]


def _of_ranks(folder: Path) -> Tokenizer:
    ranks = read_ranks(small_ranks())
    names = {name: 400 + number for number, name in enumerate(released_names(BASE))}
    controls = ControlIds(
        *(names[name] for name in ("<|pad|>", "<|bos|>", "<|endoftext|>", "<|endofchunk|>", "<|mask|>"))
    )
    return Tokenizer(tokenizer_file(ranks, PATTERN, names), controls, 420, start_ids=(controls.bos,))


def _loaded(folder: Path, backend: Backend, *names: str, **settings: Any) -> Tokenizer:
    loaded = load_tokenizer(
        write(folder, backend, **settings), controls_of(backend, *names), backend.get_vocab_size() + 7
    )
    assert loaded is not None
    return loaded


KINDS: dict[str, Callable[[Path], Tokenizer]] = {
    "ours": lambda folder: train_tokenizer(TEXTS, 313),
    "ranks": _of_ranks,
    "byte-level": lambda folder: _loaded(
        folder,
        byte_level(),
        *("<|endoftext|>", "<|im_start|>", "<|endoftext|>", "<the_cat>", "<|hole|>"),
        bos_token="<|endoftext|>",
        chat_template=CHAT,
        auto_map={"AutoTokenizer": ["code.py", None]},
    ),
    "byte-level, reached": lambda folder: _loaded(folder, reached(), "!", '"', "<|", "k|>", "<|mask|>"),
    "unigram, bytes": lambda folder: _loaded(folder, unigram(), "</s>", "<s>", "</s>", "<piece>", "<mask>"),
    "unigram": lambda folder: _loaded(folder, unigram(False), "</s>", "<s>", "</s>", "<piece>", "<mask>"),
    "word pieces": lambda folder: _loaded(folder, word_piece(), "[PAD]", "[CLS]", "[SEP]", "[mask]", "[MASK]"),
}


@pytest.fixture(scope="session", params=list(KINDS))
def kind(request: pytest.FixtureRequest) -> str:
    assert isinstance(request.param, str)
    return request.param


@pytest.fixture(scope="session")
def tokenizer(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return KINDS[kind](tmp_path_factory.mktemp("tokenizer"))
