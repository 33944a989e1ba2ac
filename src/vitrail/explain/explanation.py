"""`explain`: one answer in, one document out, the same for Python, command line, page and API (§6.1).

Every generated token is traced to the snapshot in which it was chosen; from there come the inputs
(`inputs`), the concepts (`concepts`) and the check of their sums (`certificate`). The finished text leads to
the training passages (`sources`).
"""

from collections.abc import Sequence
from typing import Annotated, Literal

import torch
from pydantic import Field
from rich.console import Console

from vitrail.atlas import ConceptLibrary
from vitrail.errors import ConfigError
from vitrail.explain.certificate import certify
from vitrail.explain.concepts import decompose_tokens
from vitrail.explain.document import Document, Sources
from vitrail.explain.inputs import deployed_states, score_inputs
from vitrail.explain.parts import Words, concepts_part, inputs_part, sources_part
from vitrail.explain.render import render
from vitrail.explain.snapshots import recorded, snapshots_of, target_hidden
from vitrail.explain.sources import Index, span_means
from vitrail.generate import Trace
from vitrail.model import ConceptLM, ModelConfig
from vitrail.settings import Settings
from vitrail.text import Tokenizer


class ExplainSettings(Settings):
    """How much to say.

    Attributes:
        num_steps: nodes of the integral over inputs.
        inputs_per_token: also rank the inputs of every single token (one backward pass each); otherwise
            only those of chunks (one for each commit).
        top_inputs: input tokens listed.
        top_concepts: concepts listed; the rest is summed apart.
        top_sources: training passages listed.
        num_deletions: concepts of each token that the certificate deletes.
    """

    num_steps: Annotated[int, Field(ge=1)] = 16
    inputs_per_token: bool = True
    top_inputs: Annotated[int, Field(ge=1)] = 10
    top_concepts: Annotated[int, Field(ge=1)] = 10
    top_sources: Annotated[int, Field(ge=1)] = 5
    num_deletions: Annotated[int, Field(ge=1)] = 4


class Explanation(Document):
    """Why an answer reads as it does: inputs, concepts, training passages, and the certificate."""

    def render(self, console: Console) -> None:
        """Print the explanation for a reader, in colour or plain.

        Args:
            console: where to print.
        """
        render(self, console)


def explain(
    model: ConceptLM,
    tokenizer: Tokenizer,
    library: ConceptLibrary,
    trace: Trace,
    *,
    index: Index | None = None,
    settings: ExplainSettings | None = None,
) -> Explanation:
    """Explain a generation (§6.1).

    Args:
        model: the network that wrote it.
        tokenizer: of the model.
        library: names of its concepts.
        trace: the generation, with the steering that was in force.
        index: training-data index of the same model; None leaves the sources out.
        settings: how much to say.

    Returns:
        the document. Everything in it is determined by the arguments: there is no randomness.

    Raises:
        ArtifactError: the index belongs to another model.
        ConfigError: the trace holds no generated token, gaps that were filled in, or ids that the model does not have.

    Cost: for each commit `num_steps` forward passes of its snapshot and as many backward passes for each
    of its tokens.
    """
    settings = settings or ExplainSettings()
    if index is not None:
        index.require_model(trace.model_id)
    _require_fit(model.config, trace)
    plan, device = trace.plan, model.transformer.tok_emb.weight.device
    snapshots = snapshots_of(trace, device)
    token_ids = torch.tensor(trace.token_ids, device=device)
    hidden = target_hidden(model, snapshots, plan)
    decomposition = decompose_tokens(model, hidden, token_ids)
    logits, logprobs, steps = recorded(snapshots)
    spans = chunk_spans(trace.token_ids, len(trace.prompt_ids), model.config)
    baseline: Literal["mask", "untrained_mask"] = "mask" if model.config.backbone == "cdlm" else "untrained_mask"
    scores = score_inputs(model, snapshots, spans, plan, settings.num_steps, settings.inputs_per_token)
    penalties = torch.zeros_like(logits)
    if plan is not None and plan.logit_penalty is not None:
        penalties = plan.logit_penalty.to(device)[token_ids]
    words = Words(tokenizer, trace.prompt_ids, trace.token_ids)
    return Explanation(
        model_id=trace.model_id,
        prompt=words.text(trace.prompt_ids),
        text=words.text(trace.token_ids),
        steer=trace.steer,
        sampling=trace.sampling.model_dump(mode="json"),
        prompt_tokens=words.prompt_tokens(),
        tokens=words.generated_tokens(steps, logits, logprobs),
        chunks=words.chunk_spans(spans),
        inputs=inputs_part(scores, words, spans, settings.num_steps, settings.top_inputs, baseline),
        concepts=concepts_part(decomposition, penalties, library, spans, settings.top_concepts),
        sources=_sources(model, tokenizer, trace, spans, index, settings.top_sources),
        certificate=certify(model, hidden, decomposition, logits, settings.num_deletions),
    )


def chunk_spans(token_ids: Sequence[int], num_prompt: int, config: ModelConfig) -> list[tuple[int, int]]:
    """Chunks of an answer: between `[EOC]` marks where there are any, else by diffusion block.

    Args:
        token_ids: generated tokens; an end-of-text closes the last chunk.
        num_prompt: number of prompt tokens, since blocks are counted from the start of the row.
        config: of the model.

    Returns:
        spans `[start, stop)` of generated tokens; marks belong to none.
    """
    marks = {config.eoc_id, config.eos_id}
    stop = next((i for i, token in enumerate(token_ids) if token == config.eos_id), len(token_ids))
    if config.eoc_id in token_ids[:stop]:
        cuts = [i for i in range(stop) if token_ids[i] in marks]
    else:
        cuts = [i for i in range(1, stop) if (num_prompt + i) % config.block == 0]
    spans, start = [], 0
    for cut in [*cuts, stop]:
        if cut > start:
            spans.append((start, cut))
        start = cut + 1 if cut < stop and token_ids[cut] in marks else cut
    return spans


def _require_fit(config: ModelConfig, trace: Trace) -> None:
    if not trace.token_ids:
        raise ConfigError("the trace holds no generated token: nothing to explain")
    if trace.mask_id in trace.prompt_ids:
        raise ConfigError("the trace fills gaps of its prompt, which is not explained; explain a continuation")
    ids = {*trace.prompt_ids, trace.mask_id, *(token for commit in trace.commits for token in commit.tokens)}
    if not 0 <= min(ids) <= max(ids) < config.vocab_size or trace.mask_id != config.mask_id:
        raise ConfigError(
            f"the trace holds token ids {min(ids)} to {max(ids)} and mask id {trace.mask_id}, the model has "
            f"{config.vocab_size} ids and mask id {config.mask_id}: another model's trace"
        )


def _sources(
    model: ConceptLM,
    tokenizer: Tokenizer,
    trace: Trace,
    spans: Sequence[tuple[int, int]],
    index: Index | None,
    top_sources: int,
) -> Sources:
    """Passages near each chunk of the finished text, read once more from start to end."""
    if index is None or not spans:  # an answer of nothing but end marks has no chunk
        return Sources(chunks=[])
    num_prompt, device = len(trace.prompt_ids), model.transformer.tok_emb.weight.device
    row = torch.tensor([[*trace.prompt_ids, *trace.token_ids]], device=device)
    chunk = torch.full_like(row, -1)
    for number, (start, stop) in enumerate(spans):
        chunk[0, num_prompt + start : num_prompt + stop] = number
    with torch.no_grad():
        states = span_means(deployed_states(model, model.hidden(row)), chunk, len(spans))
    answers = [trace.token_ids[start:stop] for start, stop in spans]
    return sources_part(index.search(states, top_sources), answers, tokenizer)
