"""A loaded model and its answers: the network, and as far as they are there, what gives its numbers names."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from vitrail.artifacts import MANIFEST_NAME, content_id, read_manifest
from vitrail.atlas import ConceptLibrary
from vitrail.errors import ArtifactError, ConfigError, PromptTooLong, VitrailError
from vitrail.explain import Explanation, Hit, Index, explain
from vitrail.generate import Beginning, Ending, OnCommit, Request, Sampling, Trace, run, stop_ids, whole_ids
from vitrail.model import (
    ConceptLM,
    DecomposedOutput,
    StoredTensors,
)
from vitrail.packed import PackedCorpus
from vitrail.steer import Calibration, Steer, SteerPlan, calibrate, parse_steers, plan_steering
from vitrail.text import Tokenizer, missing_tokenizer

CALIBRATION_SEQUENCES = 64


def calibrate_on(
    network: ConceptLM, packed: PackedCorpus, *, layer: int | None = None, target: float = 8.0, seed: int = 0
) -> Calibration:
    """Strength 1.0 of every known concept of a network, on held-out sequences.

    Args:
        network: the network.
        packed: corpus with a held-out split.
        layer: inject after this block and all later ones; None takes the middle one.
        target: mean largest logit change of strength 1.0, in logits.
        seed: of the positions.

    Returns:
        the calibration.
    """
    rows = range(min(packed.num_sequences("heldout"), CALIBRATION_SEQUENCES))
    layer = network.config.num_layers // 2 if layer is None else layer
    return calibrate(network, packed.batch("heldout", rows).tokens, layer=layer, target=target, seed=seed)


@dataclass(frozen=True)
class LoadedModel:
    """A network with its tokenizer, concept library and calibration.

    Attributes:
        directory: where it was loaded from.
        network: the weights.
        library: names of its concepts.
        found_tokenizer: the tokenizer, or None where the directory has none.
    """

    directory: Path
    network: ConceptLM
    library: ConceptLibrary
    found_tokenizer: Tokenizer | None

    @property
    def tokenizer(self) -> Tokenizer:
        """Text to ids and back.

        Raises:
            ArtifactError: the directory has none; ids can be used all the same.
        """
        if self.found_tokenizer is None:
            raise missing_tokenizer(self.directory, self.network.config.controls)
        return self.found_tokenizer

    @cached_property
    def model_id(self) -> str:
        """Hash that names these weights in traces and indexes.

        Of our own models that of their manifest, over every byte. Of others a hash of the configuration, and of
        names, types, shapes and 12 KiB of each tensor (`StoredTensors.fingerprint`): it does not prove the rest.
        """
        if (self.directory / MANIFEST_NAME).is_file():
            return read_manifest(self.directory, "model").id
        weights = StoredTensors(self.directory).fingerprint
        return content_id({"config": self.network.config.to_released(), "weights": weights})

    @cached_property
    def calibration(self) -> Calibration:
        """Strengths in shared units (`vitrail steer calibrate` writes it).

        Raises:
            ArtifactError: not calibrated yet; the message says how.
        """
        return Calibration.load(self.directory)

    def __call__(self, input_ids: Int[Tensor, "B T"]) -> DecomposedOutput:
        """Decompose the prediction at every position (§5.3).

        Args:
            input_ids: [B T] token ids; masked positions hold the mask id.

        Returns:
            logits and the parts that sum to them.
        """
        with torch.inference_mode():
            output: DecomposedOutput = self.network(input_ids)
        return output

    def prompt_ids(self, text: str) -> tuple[int, ...]:
        """A prompt as the network reads it: start of document (none for released models), then the text.

        Args:
            text: any text; special tokens typed in it are plain text.

        Returns:
            token ids.

        Raises:
            ConfigError: not Unicode text.
        """
        return (*self.tokenizer.start_ids, *self.tokenizer.encode(text))

    def plan(self, steer: str | Sequence[Steer]) -> SteerPlan | None:
        """Turn a steering request into what the network adds.

        Args:
            steer: `"NAME=+1.0; OTHER=off"`, or the parsed list.

        Returns:
            the plan; None where nothing is steered.
        """
        steers = parse_steers(steer) if isinstance(steer, str) else list(steer)
        return plan_steering(self.network, steers, self.library, self.calibration) if steers else None

    def calibrate(
        self, packed: PackedCorpus, *, layer: int | None = None, target: float = 8.0, seed: int = 0
    ) -> Calibration:
        """Find each known concept's strength 1.0 on held-out text (§6.2.1).

        Args:
            packed: corpus with a held-out split.
            layer: inject after this block and all later ones; None takes the middle one.
            target: mean largest logit change of strength 1.0, in logits.
            seed: of the positions.

        Returns:
            the calibration; `save` stores it with the model.
        """
        return calibrate_on(self.network, packed, layer=layer, target=target, seed=seed)

    def similar(self, text: str, index: Index, limit: int = 5) -> list[Hit]:
        """Training passages that resemble a text, as this model reads it (§6.1.3).

        Args:
            text: any text that fits the context.
            index: the index of this model.
            limit: how many.

        Returns:
            passages, most similar first.

        Raises:
            ArtifactError: the index of another model.
            ConfigError: an empty text.
            PromptTooLong: a text that does not fit the context.
        """
        index.require_model(self.model_id)
        row = self.prompt_ids(text)
        longest = self.network.config.max_length
        if len(row) == len(self.tokenizer.start_ids):
            raise ConfigError("the text is empty; write some words to look for")
        if len(row) > longest:
            raise PromptTooLong(f"the text has {len(row)} tokens, the context {longest}; shorten it")
        ids = torch.tensor([row], device=self.network.transformer.lm_head.weight.device)
        composed = self(ids).composed[:, len(self.tokenizer.start_ids) :].mean(1)
        return index.search(composed, limit)[0]

    def generate(
        self,
        prompt: str | Sequence[int],
        *,
        steer: str | Sequence[Steer] = (),
        stop: str | Sequence[str] = (),
        on_commit: OnCommit | None = None,
        **options: Any,
    ) -> "Generation":
        """Continue a prompt.

        Args:
            prompt: text, in which typed special tokens are plain text; or ids, taken as they are.
            steer: concepts to turn up or down.
            stop: texts that end the answer, or a single one; they are not part of it.
            on_commit: called with each commit as it happens.
            options: fields of `Sampling`, such as `max_new_tokens=64, temperature=0.7, threshold=0.9`.

        Returns:
            the answer, with all that is needed to explain it.

        Raises:
            ConfigError: an option that does not exist, is out of range or has no effect, or a steering request that
                cannot be read.
            PromptTooLong: prompt and answer do not fit the context.
            NonFiniteLogits: the model gave logits that are NaN or infinite.
        """
        return self.continue_prompt(prompt, Sampling.parse(options, where="generate"), steer, on_commit, stop)

    def generate_many(
        self,
        prompts: Sequence["str | Sequence[int] | Prompt"],
        *,
        on_commit: OnCommit | None = None,
        **options: Any,
    ) -> list["Generation | VitrailError"]:
        """Continue prompts together, each as if it were alone; one that fails leaves the others alone.

        Args:
            prompts: texts or ids, or `Prompt`s with steering, seed and stops of their own.
            on_commit: called with each commit as it happens; `commit.request` is the number of its prompt.
            options: fields of `Sampling` for those that do not bring their own.

        Returns:
            for each prompt its answer, or what was wrong with it.
        """
        shared = Sampling.parse(options, where="generate")
        asked = [prompt if isinstance(prompt, Prompt) else Prompt(prompt) for prompt in prompts]
        results: dict[int, Generation | VitrailError] = {}
        requests = dict[int, Request]()
        for number, prompt in enumerate(asked):
            try:
                requests[number] = self._request(number, prompt, shared)
            except VitrailError as error:
                results[number] = error
        run(self.network, list(requests.values()), on_commit)
        for number, request in requests.items():
            results[number] = request.failure or self._generation(request, asked[number])
        return [results[number] for number in range(len(asked))]

    def infill(
        self,
        parts: Sequence[str],
        gaps: int | Sequence[int],
        *,
        steer: str | Sequence[Steer] = (),
        on_commit: OnCommit | None = None,
        **options: Any,
    ) -> "Generation":
        """Fill gaps inside a text.

        A gap is filled with what stands before it in view, and of what follows it the rest of its own block, since a
        causal diffusion model sees no later block (§5.2).

        Args:
            parts: the text around the gaps; the first and the last may be empty.
            gaps: tokens of each gap, or of all.
            steer: concepts to turn up or down.
            on_commit: called with each commit as it happens.
            options: fields of `Sampling`; `max_new_tokens` continues the text behind its last part (0 by default).

        Returns:
            the whole text, its gaps filled.

        Raises:
            ConfigError: no gaps, another number of gaps than lie between the parts, or an `ar` model.
        """
        ids = self.with_gaps(parts, gaps)
        return self.generate(ids, steer=steer, on_commit=on_commit, **{"max_new_tokens": 0, **options})

    def with_gaps(self, parts: Sequence[str], gaps: int | Sequence[int]) -> tuple[int, ...]:
        """A prompt with gaps, which generation fills in.

        Args:
            parts: the text around the gaps; the first and the last may be empty.
            gaps: tokens of each gap, or of all.

        Returns:
            its ids; the gaps hold the mask id.

        Raises:
            ConfigError: no gaps, or another number of them than lie between the parts.
        """
        sizes = [gaps] * (len(parts) - 1) if isinstance(gaps, int) else list(gaps)
        if len(sizes) != len(parts) - 1 or not sizes or min(sizes) < 1:
            raise ConfigError(
                f"{len(parts)} parts have {max(0, len(parts) - 1)} gaps between them, of at least one token "
                f"each; got the sizes {sizes}"
            )
        ids = list(self.prompt_ids(parts[0]))
        for size, part in zip(sizes, parts[1:], strict=True):
            ids += [self.network.config.mask_id] * size + self.tokenizer.encode(part)
        return tuple(ids)

    def continue_prompt(
        self,
        prompt: str | Sequence[int],
        sampling: Sampling,
        steer: str | Sequence[Steer] = (),
        on_commit: OnCommit | None = None,
        stop: str | Sequence[str] = (),
    ) -> "Generation":
        """`generate` with its options as one object.

        Args:
            prompt: text, in which typed special tokens are plain text; or ids, taken as they are.
            sampling: how tokens are chosen.
            steer: concepts to turn up or down.
            on_commit: called with each commit as it happens.
            stop: texts that end the answer, or a single one; they are not part of it.

        Returns:
            the answer, with all that is needed to explain it.
        """
        asked = Prompt(prompt, steer, stop)
        request = self._request(0, asked, sampling)
        run(self.network, [request], on_commit)
        if request.failure is not None:
            raise request.failure
        return self._generation(request, asked)

    def request(
        self,
        number: int,
        prompt: Sequence[int],
        sampling: Sampling,
        plan: SteerPlan | None = None,
        ending: Ending | None = None,
    ) -> Request:
        """A request of this model, which never writes ids that no token has.

        Args:
            number: names it in commits.
            prompt: ids.
            sampling: how tokens are chosen.
            plan: steering, or None.
            ending: says where the text ends before its length is reached, or None.

        Returns:
            the request, for a `Batch`.

        Raises:
            PromptTooLong: prompt and answer do not fit the context.
            ConfigError: an option or an id that the model cannot have.
        """
        unused = self.found_tokenizer.unused_ids if self.found_tokenizer is not None else frozenset[int]()
        if unused:
            sampling = sampling.model_copy(update={"banned_ids": tuple(sorted({*sampling.banned_ids, *unused}))})
        return Request(number, self.network.config, prompt, sampling, plan, ending)

    def _request(self, number: int, prompt: "Prompt", shared: Sampling) -> Request:
        words, stops = prompt.words, prompt.stops
        ids = self.prompt_ids(words) if isinstance(words, str) else whole_ids(number, words)
        sampling, ending = prompt.sampling or shared, None
        if stops and not sampling.max_new_tokens:
            raise ConfigError("stop ends what follows the prompt, and max_new_tokens is 0; leave it out")
        if stops:
            ends = stop_ids(self.network.config, sampling)
            ending = Beginning(self.tokenizer, len(ids), stops, ends).stops_at
        return self.request(number, ids, sampling, self.plan(prompt.steer), ending)

    def _generation(self, request: Request, prompt: "Prompt") -> "Generation":
        return Generation(self, request.trace(self.model_id), prompt.stops)

    def answer(self, trace: Trace) -> "Generation":
        """An earlier answer of this model, to be explained.

        Args:
            trace: what `Trace.load` read.

        Returns:
            the answer.

        Raises:
            ArtifactError: the trace of another model.
        """
        if trace.model_id != self.model_id:
            raise ArtifactError(
                f"the trace is of model {trace.model_id[:12]}, {self.directory} is model {self.model_id[:12]}; "
                "name the model that generated it"
            )
        return Generation(self, trace)


@dataclass(frozen=True)
class Prompt:
    """One of many prompts, with what is its own.

    Attributes:
        words: text, or ids.
        steer: concepts to turn up or down.
        stop: texts that end the answer, or a single one.
        sampling: how its tokens are chosen; None for the options of the call.
    """

    words: str | Sequence[int]
    steer: str | Sequence[Steer] = ()
    stop: str | Sequence[str] = ()
    sampling: Sampling | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        """The texts that end the answer.

        Raises:
            ConfigError: one is empty, or no text.
        """
        stops = tuple(self.stop) if isinstance(self.stop, Sequence) and not isinstance(self.stop, str) else (self.stop,)
        for text in stops:
            if not isinstance(text, str):
                raise ConfigError(f"stop: {text!r} is no text; ids that end the answer are stop_ids")
            if not text:
                raise ConfigError("stop: an empty text would end every answer at once; leave it out")
        return stops


@dataclass(frozen=True)
class Generation:
    """An answer and its trace.

    Attributes:
        model: what wrote it.
        trace: what was committed when, from which snapshot.
        stop: texts that end it.
    """

    model: LoadedModel
    trace: Trace
    stop: tuple[str, ...] = ()

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Generated ids, in the order of the text."""
        return tuple(self.trace.token_ids)

    @property
    def text(self) -> str:
        """The answer as text, up to the first stop in it; where gaps were filled, with the prompt before it."""
        decode, prompt_ids = self.model.tokenizer.decode, self.trace.prompt_ids
        text = answer = decode(self.trace.row[len(prompt_ids) :])
        if self.trace.mask_id in prompt_ids:
            text = decode(self.trace.row)
        end = min((place for stop in self.stop if (place := answer.find(stop)) >= 0), default=len(answer))
        return text[: len(text) - len(answer) + end]

    def explain(self, index: str | Path | Index | None = None) -> Explanation:
        """Say why: inputs, concepts, training passages, certificate (§6.1).

        Args:
            index: training-data index or its directory; None leaves the sources out.

        Returns:
            one document; `to_json()` gives what the page and the command line show.
        """
        opened = Index.open(Path(index)) if isinstance(index, str | Path) else index
        model = self.model
        return explain(model.network, model.tokenizer, model.library, self.trace, index=opened)
