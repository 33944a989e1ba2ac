"""Text ↔ token ids, for every kind of vocabulary that models here come with.

One class over a `tokenizer.json`: our own (byte-level BPE, see `training`), the released one (see `released`), and any
of Hugging Face's. A model's configuration says which ids are control tokens, and how many ids it has in all; those that
no token has are `unused_ids`. Control tokens are never made from text: `<|endoftext|>` typed by a user is a dozen
ordinary tokens.
"""

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from vitrail.artifacts import atomic_write_bytes
from vitrail.errors import ArtifactError
from vitrail.text.backend import (
    Backend,
    continuing,
    damage_faults,
    encoding,
    marked,
    opened,
    parsed,
    start_of_prompt,
    text_faults,
)
from vitrail.text.chat import (
    HeaderTemplate,
    JinjaTemplate,
    Message,
    PlainTemplate,
    Template,
    check_messages,
    turns_of,
)
from vitrail.text.controls import SPECIALS, ControlIds, Part, control_splitter, controls_by_name
from vitrail.text.spelling import Spelling

FILE_NAME = "tokenizer.json"
SETTINGS_NAME = "tokenizer_config.json"
TEMPLATE_NAME = "chat_template.jinja"


class Tokenizer:
    """Text ↔ token ids.

    Attributes:
        vocab_size: number of ids of the model.
        controls: ids of the control tokens that the model uses.
        pad_id: padding.
        bos_id: start of a document.
        eos_id: end of a document.
        eoc_id: end of a chunk.
        mask_id: a masked place.
        special_ids: what no text becomes: those above, and whatever else the vocabulary or the chat template marks.
        unused_ids: ids below `vocab_size` that no token has; they decode to nothing.
        start_ids: what a prompt begins with, before its text.
        is_byte_exact: whether `token_bytes` is exact; in vocabularies that cannot write every byte it is a likely text.
        has_chat_template: whether the model knows roles.
    """

    def __init__(
        self,
        file: str,
        controls: ControlIds,
        vocab_size: int | None = None,
        *,
        start_ids: Sequence[int] | None = None,
        chat_template: str | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        """Use `load_tokenizer`, `Tokenizer.load` or `train_tokenizer`.

        Args:
            file: content of `tokenizer.json`.
            controls: ids of the control tokens.
            vocab_size: number of ids of the model; None for those that the vocabulary has.
            start_ids: what a prompt begins with; None for what the file says.
            chat_template: Jinja text, or None.
            settings: content of `tokenizer_config.json`, to be written beside the file; None to write none.

        Raises:
            ArtifactError: damaged, or with ids beyond those of the model.
        """
        content = parsed(file)
        with damage_faults():
            self._spelling = Spelling.of(content)
            marked_ids = marked(content, chat_template or "", self._spelling.unknown)
        self.controls = controls
        self.pad_id, self.bos_id, self.eos_id = controls.pad, controls.bos, controls.eos
        self.eoc_id, self.mask_id = controls.eoc, controls.mask
        self.special_ids = controls.ids | marked_ids

        self._file, self._settings, self.chat_template = file, settings, chat_template
        self._backend = opened(content, self.special_ids)
        self.start_ids = start_of_prompt(self._backend) if start_ids is None else tuple(start_ids)
        self._backend.post_processor = None  # it would cut the spaces off offsets
        self._continuing = continuing(content, self.special_ids) or self._backend

        vocabulary: dict[str, int] = self._backend.get_vocab()
        self._names = {token_id: piece for piece, token_id in vocabulary.items()}
        self._ids = {piece: token_id for piece, token_id in vocabulary.items() if token_id not in self.special_ids}
        self.vocab_size = max(self._names) + 1 if vocab_size is None else vocab_size
        if max(self._names) >= self.vocab_size:
            raise ArtifactError(
                f"has ids up to {max(self._names)}, the model {self.vocab_size} in all; take the model's own tokenizer"
            )
        self.unused_ids = frozenset(range(self.vocab_size)) - self._names.keys() - self.special_ids
        self._added = self._backend.get_added_tokens_decoder()
        self._bytes = [self._bytes_of(token_id) for token_id in range(self.vocab_size)]
        self.is_byte_exact = self._spelling.kind != "words"
        self._template = self._chosen_template()
        self.has_chat_template = not isinstance(self._template, PlainTemplate)

    @classmethod
    def named(cls, backend: Backend) -> "Tokenizer":
        """A tokenizer whose control tokens have our names.

        Args:
            backend: holds the control tokens.

        Returns:
            the tokenizer; prompts begin with the start of a document.

        Raises:
            ArtifactError: a control token is missing.
        """
        vocabulary: dict[str, int] = backend.get_vocab()
        controls = controls_by_name(vocabulary)
        if controls is None:
            missing = next(name for name in SPECIALS if name not in vocabulary)
            raise ArtifactError(f"tokenizer: lacks the control token {missing}; train a new one")
        return cls(backend.to_str(pretty=True), controls, start_ids=(controls.bos,))

    @classmethod
    def load(cls, path: Path) -> "Tokenizer":
        """Read a saved tokenizer of our own.

        Args:
            path: the folder that holds `tokenizer.json`.

        Returns:
            the tokenizer.

        Raises:
            ArtifactError: missing or damaged, or without the control tokens.
        """
        file = path / FILE_NAME
        try:
            return cls.named(opened(parsed(file.read_text(encoding="utf-8")), ()))
        except OSError as error:
            raise ArtifactError(f"{file}: {error.strerror}; name a folder with a tokenizer") from error
        except UnicodeDecodeError as error:
            raise ArtifactError(f"{file}: damaged ({error}); build the tokenizer again") from error
        except ArtifactError as error:
            raise ArtifactError(f"{file}: {error}") from error

    def encode(self, text: str) -> list[int]:
        """Token ids of a text; never a control token.

        Args:
            text: any text.

        Returns:
            ids.

        Raises:
            ConfigError: the text holds half a character (a lone surrogate), so it is not Unicode text.
        """
        return self._as_text(encoding(self._backend, text).ids)

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Token ids and the characters each comes from.

        Args:
            text: any text.

        Returns:
            ids, and spans [start, stop) in characters; tokens that share a character all span it.

        Raises:
            ConfigError: as of `encode`.
        """
        whole = encoding(self._backend, text)
        pairs = [
            (part, span)
            for token_id, span in zip(whole.ids, whole.offsets, strict=True)
            for part in self._as_text([token_id])
        ]
        return [part for part, _ in pairs], [span for _, span in pairs]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` of many texts at once.

        Args:
            texts: any texts.

        Returns:
            ids of each.

        Raises:
            ConfigError: as of `encode`.

        Cost: about 4 MB of text per core-second.
        """
        with text_faults():
            encodings = self._backend.encode_batch_fast(list(texts), add_special_tokens=False)
        return [self._as_text(encoding.ids) for encoding in encodings]

    def encode_with_controls(self, text: str, ids: Collection[int] | None = None) -> list[int]:
        """Token ids of a text in which names of control tokens mean these tokens: for templates, not for users.

        Args:
            text: trusted text.
            ids: control tokens to find; None for all.

        Returns:
            ids.

        Raises:
            ConfigError: as of `encode`.
        """
        return self._joined(self._splitter(self.special_ids if ids is None else ids)(text))

    def chat_ids(self, messages: Sequence[Message], add_generation_prompt: bool = True) -> list[int]:
        """The prompt of a conversation, by the model's template; contents are text, whatever they hold.

        Without a template the contents stand below one another, a blank line after each.

        Args:
            messages: mappings with `role` and `content`.
            add_generation_prompt: end where the answer begins.

        Returns:
            ids of the whole prompt.

        Raises:
            ConfigError: no messages, or not such mappings, or the template refuses them or changes what they say.
        """
        check_messages(messages)
        start = () if self.has_chat_template else self.start_ids
        return [*start, *self._joined(self._template.parts(messages, add_generation_prompt))]

    def chat_turns(self, messages: Sequence[Message]) -> list[tuple[list[int], bool]]:
        """A conversation up to its last answer, cut where the assistant begins and ends: what an answer is trained on.

        Each stretch is encoded by itself, so that an answer stands behind the same ids as when it is generated.

        Args:
            messages: mappings with `role` and `content`; answers have the role `assistant`.

        Returns:
            stretches of ids in order, and whether each is an answer, which ends with the last control token that the
            template writes behind it.

        Raises:
            ConfigError: as of `chat_ids`, or the template writes a beginning otherwise once more follows.
        """
        check_messages(messages)
        turns = turns_of(self._template, messages)
        first = [*(() if self.has_chat_template else self.start_ids), *self._joined(turns[0][0])] if turns else []
        rest = [(self._joined(parts, is_start=False), is_answer) for parts, is_answer in turns[1:]]
        return [(first, False), *rest] if turns else []

    def decode(self, ids: Iterable[int], keep_special: bool = False) -> str:
        """Text of token ids.

        Args:
            ids: token ids.
            keep_special: show control tokens by name instead of leaving them out.

        Returns:
            the text; bytes that are not UTF-8 (a character cut in two) become U+FFFD.
        """
        if self._spelling.kind == "byte-level":
            spelt = self.token_name if keep_special else self.token_bytes
            return b"".join(map(spelt, ids)).decode("utf-8", "replace")
        left_out = self.unused_ids if keep_special else self.unused_ids | self.special_ids
        kept = [token_id for token_id in ids if token_id not in left_out]
        return str(self._backend.decode(kept, skip_special_tokens=False))

    def token_name(self, token_id: int) -> bytes:
        """Bytes of a token, and for a control token its name.

        Args:
            token_id: an id.

        Returns:
            bytes.
        """
        if token_id in self.special_ids:
            return self._names.get(token_id, f"<|{token_id}|>").encode()
        return self._bytes[token_id]

    def token_text(self, token_id: int) -> str:
        """One token for display, its leading space kept.

        Args:
            token_id: an id.

        Returns:
            its text; the name of a control token; U+FFFD for a part of a character.
        """
        return self.token_name(token_id).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of one token; exact where `is_byte_exact`.

        Args:
            token_id: an id.

        Returns:
            bytes, none for a control token or an unused id.
        """
        return self._bytes[token_id]

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the vocabulary, merges and rules: equal tokenizers have equal ones."""
        return hashlib.sha256(self._backend.to_str().encode()).hexdigest()

    def save(self, path: Path) -> None:
        """Write `tokenizer.json`, and what a foreign one has beside it.

        Args:
            path: folder; made if it is missing.

        Raises:
            RunFailed: the disk is full.
        """
        path.mkdir(parents=True, exist_ok=True)
        atomic_write_bytes(path / FILE_NAME, self._file.encode())
        if self._settings is not None:
            settings = json.dumps(dict(self._settings), ensure_ascii=False, indent=2)
            atomic_write_bytes(path / SETTINGS_NAME, settings.encode())
        if self.chat_template is not None:
            atomic_write_bytes(path / TEMPLATE_NAME, self.chat_template.encode())

    def _as_text(self, ids: list[int]) -> list[int]:
        """The ids, with what became a control token after all taken apart.

        Flags of the vocabulary keep most names from being found. But a control token may also be one of the model's
        own pieces, which its merges or its scores reach.
        """
        if self.special_ids.isdisjoint(ids):
            return list(ids)
        return [
            part
            for token_id in ids
            for part in (
                self._spelling.letters(self._names[token_id], self._ids.get)
                if token_id in self.special_ids
                else (token_id,)
            )
        ]

    def _joined(self, parts: Iterable[Part], is_start: bool = True) -> list[int]:
        """Ids of control tokens and texts; neighbouring texts are read as one, as if no one had cut them."""
        ids: list[int] = []
        text = ""
        for part in (*parts, None):
            if isinstance(part, str):
                text += part
                continue
            if text:
                ids += self._as_text(encoding(self._backend if is_start and not ids else self._continuing, text).ids)
                text = ""
            if part is not None:
                ids.append(part)
        return ids

    def _splitter(self, ids: Collection[int]) -> Callable[[str], list[Part]]:
        names = {self._names[token_id]: token_id for token_id in self.special_ids if token_id in self._names}
        return control_splitter(names, self._added, ids)

    def _chosen_template(self) -> Template:
        if HeaderTemplate.fits(self.controls):
            return HeaderTemplate(self.controls)
        if self.chat_template is None:
            return PlainTemplate()
        return JinjaTemplate(self.chat_template, _token_names(self._settings or {}), self._splitter(self.special_ids))

    def _bytes_of(self, token_id: int) -> bytes:
        if token_id in self.special_ids or token_id not in self._names:
            return b""
        return self._spelling.bytes_of(self._names[token_id], token_id in self._added)


def _token_names(settings: Mapping[str, Any]) -> dict[str, str]:
    """The names of control tokens in `tokenizer_config.json`, as templates use them (`bos_token`)."""
    entries = {key: value for key, value in settings.items() if key.endswith("_token")}
    names = {key: value.get("content") if isinstance(value, Mapping) else value for key, value in entries.items()}
    return {key: name for key, name in names.items() if isinstance(name, str)}
