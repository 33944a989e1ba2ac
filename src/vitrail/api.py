"""The verbs of the project as Python calls: load a model, generate, explain.

`load` reads a model directory made by `vitrail train` or `vitrail demo`. What it returns holds the
network and all that gives its numbers names: tokenizer, concept library, calibration of strengths.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from jaxtyping import Int
from torch import Tensor

from vitrail.artifacts import read_manifest
from vitrail.atlas import ConceptLibrary
from vitrail.errors import ArtifactError, CheckpointError, ConfigError, PromptTooLong
from vitrail.explain import Explanation, Hit, Index, explain
from vitrail.generate import OnCommit, Sampling, Trace, generate
from vitrail.model import ConceptLM, DecomposedOutput, ModelConfig, load_model
from vitrail.packed import PackedCorpus
from vitrail.steer import Calibration, Steer, SteerPlan, calibrate, parse_steers, plan_steering
from vitrail.text import Tokenizer

CALIBRATION_SEQUENCES = 64
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}


def choose_device(name: str) -> torch.device:
    """The device that a `--device` value names.

    Args:
        name: auto, cpu, cuda, mps, or any name PyTorch knows.

    Returns:
        the device; `auto` prefers cuda, then mps, then cpu.

    Raises:
        ConfigError: no such device on this machine.
    """
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros((), device=device).item()
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"device '{name}' cannot be used here ({reason}); try --device auto") from error
    return device


def choose_dtype(name: str) -> torch.dtype:
    """The dtype that a `--dtype` value names.

    Args:
        name: float32, bfloat16 or float64.

    Returns:
        the dtype.

    Raises:
        ConfigError: another name.
    """
    if name not in _DTYPES:
        raise ConfigError(f"dtype '{name}' is not one of {', '.join(_DTYPES)}")
    return _DTYPES[name]


def load(path: str | Path, *, device: str = "auto", dtype: str = "float32") -> "LoadedModel":
    """Load a model directory.

    Args:
        path: directory with `config.json`, `*.safetensors`, `tokenizer/` and `concepts.parquet`.
        device: auto, cpu, cuda or mps.
        dtype: float32, bfloat16 or float64.

    Returns:
        the model, ready to generate and explain.

    Raises:
        CheckpointError: a file is missing or damaged, or tokenizer or library are another model's.
        ConfigError: no such device or dtype here.
    """
    directory = Path(path)
    network = load_model(directory, device=choose_device(device), dtype=choose_dtype(dtype))
    tokenizer, library = Tokenizer.load(directory / "tokenizer"), ConceptLibrary.load(directory)
    _require_match(directory, network.config, tokenizer, library)
    return LoadedModel(directory=directory, network=network, tokenizer=tokenizer, library=library)


def _require_match(directory: Path, config: ModelConfig, tokenizer: Tokenizer, library: ConceptLibrary) -> None:
    found = (tokenizer.vocab_size, tokenizer.bos_id, tokenizer.eos_id, tokenizer.eoc_id, tokenizer.mask_id)
    wanted = (config.vocab_size, config.bos_id, config.eos_id, config.eoc_id, config.mask_id)
    if found != wanted:
        raise CheckpointError(
            f"{directory}/tokenizer: vocabulary size and control ids {found} are not those of config.json, {wanted}; "
            "copy the tokenizer that the model was trained with"
        )
    if library.num_known != config.num_concepts:
        raise CheckpointError(
            f"{directory}/concepts.parquet: {library.num_known} known concepts, config.json has "
            f"{config.num_concepts}; copy the library that the model was trained with"
        )


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
        tokenizer: text to ids and back.
        library: names of its concepts.
    """

    directory: Path
    network: ConceptLM
    tokenizer: Tokenizer
    library: ConceptLibrary

    @cached_property
    def model_id(self) -> str:
        """Content hash that names these weights in traces and indexes."""
        return read_manifest(self.directory, "model").id

    @cached_property
    def calibration(self) -> Calibration:
        """Strengths in shared units (`vitrail steer calibrate` writes it)."""
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
        """A prompt as the network reads it: start of document, then the text.

        Args:
            text: any text; special tokens typed in it are plain text.

        Returns:
            token ids.

        Raises:
            ConfigError: not Unicode text.
        """
        return (self.tokenizer.bos_id, *self.tokenizer.encode(text))

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
        if len(row) == 1:
            raise ConfigError("the text is empty; write some words to look for")
        if len(row) > longest:
            raise PromptTooLong(f"the text has {len(row)} tokens, the context {longest}; shorten it")
        ids = torch.tensor([row], device=self.network.transformer.lm_head.weight.device)
        composed = self(ids).composed[:, 1:].mean(1)
        return index.search(composed, limit)[0]

    def generate(
        self,
        prompt: str,
        *,
        max_new_tokens: int = 64,
        temperature: float = 0.0,
        top_p: float = 1.0,
        tokens_per_step: int = 1,
        repetition_penalty: float = 1.0,
        seed: int = 0,
        steer: str | Sequence[Steer] = (),
        on_commit: OnCommit | None = None,
    ) -> "Generation":
        """Continue a prompt.

        Args:
            prompt: text; special tokens typed in it are plain text.
            max_new_tokens: how many tokens to add.
            temperature: 0 takes the most likely token.
            top_p: nucleus of the sampling.
            tokens_per_step: how many tokens each denoising step commits.
            repetition_penalty: above 1, tokens already in the text become less likely.
            seed: of the sampling.
            steer: concepts to turn up or down.
            on_commit: called with each commit as it happens.

        Returns:
            the answer, with all that is needed to explain it.

        Raises:
            ConfigError: a value out of range, or a steering request that cannot be read.
            PromptTooLong: prompt and answer do not fit the context.
        """
        values = {
            "max_new_tokens": max_new_tokens,
            "temperature": temperature,
            "top_p": top_p,
            "tokens_per_step": tokens_per_step,
            "repetition_penalty": repetition_penalty,
            "seed": seed,
        }
        return self.continue_prompt(prompt, Sampling.parse(values, where="generate"), steer, on_commit)

    def continue_prompt(
        self,
        prompt: str,
        sampling: Sampling,
        steer: str | Sequence[Steer] = (),
        on_commit: OnCommit | None = None,
    ) -> "Generation":
        """`generate` with its settings as one object.

        Args:
            prompt: text; special tokens typed in it are plain text.
            sampling: how tokens are chosen.
            steer: concepts to turn up or down.
            on_commit: called with each commit as it happens.

        Returns:
            the answer, with all that is needed to explain it.
        """
        prompts, plans = [self.prompt_ids(prompt)], [self.plan(steer)]
        (trace,) = generate(self.network, prompts, sampling, plans, on_commit=on_commit, model_id=self.model_id)
        return Generation(self, trace)

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
class Generation:
    """An answer and its trace.

    Attributes:
        model: what wrote it.
        trace: what was committed when, from which snapshot.
    """

    model: LoadedModel
    trace: Trace

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Generated ids, in the order of the text."""
        return tuple(self.trace.token_ids)

    @property
    def text(self) -> str:
        """The answer as text."""
        return self.model.tokenizer.decode(list(self.token_ids))

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
