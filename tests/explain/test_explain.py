"""The whole document: consistent with itself, with the trace, and readable."""

import io
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
import torch
from rich.console import Console

from vitrail.errors import ArtifactError, ConfigError
from vitrail.explain import Document, ExplainSettings, Explanation, Index, best_overlap, chunk_spans, explain
from vitrail.generate import Sampling, Trace, generate
from vitrail.model import ModelConfig
from vitrail.steer import SteerPlan

if TYPE_CHECKING:
    from tests.explain.conftest import World


@pytest.fixture(scope="module")
def index(world: "World") -> Index:
    return Index.open(world.build_index("explain-index"))


@pytest.fixture(scope="module")
def steered(world: "World", make_plan: Callable[..., SteerPlan]) -> Trace:
    prompt = [world.tokenizer.bos_id, *world.tokenizer.encode("glass and lead")]
    sampling = Sampling(max_new_tokens=13, tokens_per_step=2, temperature=1.0, seed=1)
    (trace,) = generate(world.model, [prompt], sampling, [make_plan(world.model, 0.5)], model_id=world.model_id)
    return trace


@pytest.fixture(scope="module")
def explanation(world: "World", steered: Trace, index: Index) -> Explanation:
    return explain(world.model, world.tokenizer, world.library, steered, index=index)


def test_json_is_read_back_as_the_same_document(explanation: Explanation) -> None:
    assert Document.model_validate_json(explanation.to_json()).model_dump() == explanation.model_dump()


def test_it_tells_the_trace(explanation: Explanation, steered: Trace, world: "World") -> None:
    assert [token.id for token in explanation.tokens] == list(steered.token_ids)
    assert [token.id for token in explanation.prompt_tokens] == list(steered.prompt_ids)
    assert explanation.text == world.tokenizer.decode(list(steered.token_ids))
    for token, (number, place) in zip(explanation.tokens, steered.places, strict=True):
        commit = steered.commits[number]
        assert (token.step, token.logit) == (commit.step, commit.logits[place])
        assert 0 < token.prob <= 1


def test_the_parts_agree_with_each_other(explanation: Explanation) -> None:
    assert explanation.certificate.passed
    for token in explanation.concepts.tokens:
        total = token.known + token.discovered + token.residual
        assert total == pytest.approx(token.token_logit, abs=1e-3)
        assert token.steering_penalty >= 0
        for head in ("known", "discovered"):
            listed = sum(c.contribution for c in token.ranked if c.head == head)
            assert listed + getattr(token, f"unlisted_{head}") == pytest.approx(getattr(token, head), abs=1e-3)
    for chunk, span in zip(explanation.concepts.chunks, explanation.chunks, strict=True):
        tokens = explanation.concepts.tokens[span.start : span.stop]
        for part in ("known", "discovered", "residual", "known_centred", "residual_centred"):
            assert getattr(chunk, part) == pytest.approx(sum(getattr(t, part) for t in tokens), abs=1e-3)
    assert any(token.steering_penalty > 0 for token in explanation.concepts.tokens)


def test_ranks_are_by_magnitude_and_named(explanation: Explanation) -> None:
    cards = {("known", 0): "glass", ("known", 1): "lead", ("discovered", 3): "of"}
    for part in (*explanation.concepts.chunks, *explanation.concepts.tokens):
        sizes = [abs(concept.centred) for concept in part.ranked]
        assert sizes == sorted(sizes, reverse=True)
        for concept in part.ranked:
            key = (concept.head, concept.concept_id)
            assert concept.name == cards.get(key, f"{concept.head} #{concept.concept_id}")


def test_inputs_have_shares_and_small_gaps(explanation: Explanation) -> None:
    assert explanation.inputs.steps == 16
    for chunk in explanation.inputs.chunks:
        assert chunk.prompt_share + chunk.generated_share + chunk.injection_share == pytest.approx(1)
        assert chunk.injection_share > 0
        assert len(chunk.scores) == len(explanation.prompt_tokens)
        assert chunk.completeness_gap < 0.05
    first = explanation.inputs.tokens[0]
    assert all(hit.where == "prompt" or hit.pos < len(explanation.tokens) for hit in first.ranked)


def test_sources_have_similarity_overlap_and_provenance(explanation: Explanation) -> None:
    assert explanation.sources.note == "similarity is not influence"
    for chunk in explanation.sources.chunks:
        similarities = [hit.similarity for hit in chunk.hits]
        assert len(similarities) == 5
        assert similarities == sorted(similarities, reverse=True)
        assert all(hit.license == "CC0-1.0" and hit.overlap.text in hit.text for hit in chunk.hits)


def test_it_is_deterministic(explanation: Explanation, world: "World", steered: Trace, index: Index) -> None:
    again = explain(world.model, world.tokenizer, world.library, steered, index=index)
    assert again.to_json() == explanation.to_json()


def test_chunks_alone_are_the_same_and_cheaper(explanation: Explanation, world: "World", steered: Trace) -> None:
    settings = ExplainSettings(inputs_per_token=False)
    short = explain(world.model, world.tokenizer, world.library, steered, settings=settings)
    assert short.inputs.tokens == []
    assert short.sources.chunks == []
    for ours, other in zip(short.inputs.chunks, explanation.inputs.chunks, strict=True):
        assert ours.scores == pytest.approx(other.scores, abs=1e-3)


def test_a_false_trace_is_not_certified(world: "World", steered: Trace) -> None:
    """Weights that did not write the answer: the recorded logits are not theirs."""
    other = world.model.__class__(world.model.config)
    other.load_state_dict(world.model.state_dict())
    with torch.no_grad():
        dict(other.named_parameters())["transformer.blocks.0.mlp.c_fc.weight"].add_(0.01)
    settings = ExplainSettings(inputs_per_token=False, num_steps=1)
    found = explain(other.eval(), world.tokenizer, world.library, steered, settings=settings)
    assert not found.certificate.passed
    assert found.certificate.parts["generated_logit"] > found.certificate.tolerance


def test_bad_input_is_a_clear_error(world: "World", steered: Trace, index: Index, trace: Trace) -> None:
    with pytest.raises(ArtifactError, match="index was built for model"):
        explain(world.model, world.tokenizer, world.library, trace, index=index)
    empty = Trace((1,), (), (), steered.sampling, None, steered.mask_id, world.model_id)
    with pytest.raises(ConfigError, match="no generated token"):
        explain(world.model, world.tokenizer, world.library, empty)


@pytest.mark.parametrize(("is_plain", "encoding"), [(True, "ascii"), (True, "utf-8"), (False, "utf-8")])
def test_rendering_says_the_same_with_and_without_colour(
    explanation: Explanation, is_plain: bool, encoding: str
) -> None:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="replace")
    console = Console(file=file, width=100, force_terminal=not is_plain, color_system=None if is_plain else "truecolor")
    explanation.render(console)
    file.flush()
    text = file.buffer.getvalue().decode(encoding)
    assert ("\x1b[" in text) != is_plain
    for word in ("Inputs", "Concepts", "Training text", "similarity is not influence", "Certificate", "passed", "[1]"):
        assert word in text
    if encoding == "ascii":
        assert "+#" in text


def test_best_overlap_is_the_longest_shared_run(world: "World") -> None:
    ids = world.tokenizer.encode("blue glass and lead and light")
    found = best_overlap(ids, "red glass and lead, green", world.tokenizer)
    assert found.text.strip() == "glass and lead"
    assert best_overlap([], "red", world.tokenizer).num_tokens == 0


def test_chunks_of_an_answer() -> None:
    config = ModelConfig(block=4, eoc_id=7, eos_id=8)
    assert chunk_spans([1, 2, 3, 4, 5, 6], 3, config) == [(0, 1), (1, 5), (5, 6)]
    assert chunk_spans([1, 2, 7, 7, 4, 8], 3, config) == [(0, 2), (4, 5)]
    assert chunk_spans([7, 1], 4, config) == [(1, 2)]
    assert chunk_spans([1, 2, 3, 4], 4, config) == [(0, 4)]
