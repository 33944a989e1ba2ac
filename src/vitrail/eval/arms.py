"""One arm of the steering benchmark: texts generated under one treatment, and what the judges say of them.

Fluency is judged by an n-gram model fitted on train tokens (perplexity of the generated tokens given the
prompt) and by distinct-2, the share of different bigrams in a text: a repeated word may be a hit, and shows
here.
Everything is kept per text, so that every figure gets an interval over concepts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from jaxtyping import Float, Int

from vitrail.atlas.judge import Judge, KeywordScore
from vitrail.eval.prompts import Item
from vitrail.generate import Sampling, generate
from vitrail.metrics.intervals import Interval, bootstrap, difference, mean_interval, ratio
from vitrail.metrics.ngram import NGramModel
from vitrail.model import ConceptLM
from vitrail.steer import SteerPlan
from vitrail.text import Tokenizer


@dataclass(frozen=True)
class Arm:
    """Texts of one treatment, with their scores.

    Attributes:
        texts: generated texts, without their prompts.
        concept: [n] the concept each is judged for: the cluster of every interval.
        hit: [n] 1 where the judge says that it carries the concept.
        keyword: [n] 1 where a characteristic word is there.
        nats: [n] negative log-probability under the n-gram model, summed over generated tokens.
        num_tokens: [n] generated tokens.
        distinct2: [n] different bigrams over bigrams.
    """

    texts: tuple[str, ...]
    concept: Int[np.ndarray, " n"]
    hit: Float[np.ndarray, " n"]
    keyword: Float[np.ndarray, " n"]
    nats: Float[np.ndarray, " n"]
    num_tokens: Float[np.ndarray, " n"]
    distinct2: Float[np.ndarray, " n"]


@dataclass(frozen=True)
class Judges:
    """Everything that scores a text; none of it has seen the model.

    Attributes:
        judge: hit or not.
        keyword: the second opinion.
        ngram: fluency.
        tokenizer: from tokens to text.
    """

    judge: Judge
    keyword: KeywordScore
    ngram: NGramModel
    tokenizer: Tokenizer


def run_arm(
    model: ConceptLM,
    items: Sequence[Item],
    plans: Sequence[SteerPlan | None],
    sampling: Sampling,
    judges: Judges,
) -> Arm:
    """Generate and judge one text per item.

    Args:
        model: the model.
        items: prompts.
        plans: the treatment of each; None leaves it unsteered.
        sampling: shared settings; each item brings its own seed.
        judges: score the texts.

    Returns:
        the arm, in the order of the items.
    """
    traces = generate(
        model,
        [item.prompt for item in items],
        [sampling.model_copy(update={"seed": item.seed}) for item in items],
        plans,
    )
    tokens = [list(trace.token_ids) for trace in traces]
    texts = tuple(judges.tokenizer.decode(ids) for ids in tokens)
    concept_ids = [item.concept_id for item in items]
    return Arm(
        texts=texts,
        concept=np.array(concept_ids, dtype=np.int64),
        hit=judges.judge.hits(texts, concept_ids).astype(np.float64),
        keyword=judges.keyword.score(texts, concept_ids),
        nats=np.array([_nats(judges.ngram, item.prompt, ids) for item, ids in zip(items, tokens, strict=True)]),
        num_tokens=np.array([len(ids) for ids in tokens], dtype=np.float64),
        distinct2=np.array([distinct_2(ids) for ids in tokens], dtype=np.float64),
    )


def distinct_2(ids: Sequence[int]) -> float:
    """Different bigrams over bigrams of one text; 1 for a text too short to repeat."""
    bigrams = list(pairwise(ids))
    return len(set(bigrams)) / len(bigrams) if bigrams else 1.0


def rate(arm: Arm, seed: int) -> Interval:
    """Share of texts that hit, with its interval over concepts."""
    return mean_interval(arm.hit, clusters=arm.concept, seed=seed)


def keyword_rate(arm: Arm, seed: int) -> Interval:
    """Share of texts with a characteristic word, with its interval over concepts."""
    return mean_interval(arm.keyword, clusters=arm.concept, seed=seed)


def rate_difference(arm: Arm, base: Arm, seed: int) -> Interval:
    """Hit rate of an arm minus that of another on the same concepts."""
    return _paired(arm.hit, arm, base.hit, base, seed)


def keyword_difference(arm: Arm, base: Arm, seed: int) -> Interval:
    """Keyword rate of an arm minus that of another on the same concepts."""
    return _paired(arm.keyword, arm, base.keyword, base, seed)


def perplexity_ratio(arm: Arm, base: Arm, seed: int) -> Interval:
    """Perplexity of an arm's generated tokens over that of the base, with its interval over concepts."""
    sums = _stacked(arm, arm.nats, arm.num_tokens, base, base.nats, base.num_tokens)
    clusters = np.concatenate([arm.concept, base.concept])
    return bootstrap(sums, lambda totals: np.exp(difference(totals)), clusters=clusters, seed=seed)


def distinct2_ratio(arm: Arm, base: Arm, seed: int) -> Interval:
    """Mean distinct-2 of an arm over that of the base, with its interval over concepts."""
    ones, base_ones = np.ones_like(arm.distinct2), np.ones_like(base.distinct2)
    sums = _stacked(arm, arm.distinct2, ones, base, base.distinct2, base_ones)
    clusters = np.concatenate([arm.concept, base.concept])
    return bootstrap(sums, _ratio_of_ratios, clusters=clusters, seed=seed)


def relative_drops(base: Arm, target: Arm, control: Arm, seed: int) -> dict[str, Interval]:
    """How much of the base's hit rate each of two suppressions takes away, and their difference.

    Args:
        base: unsteered texts on prompts that carry the concept.
        target: the concept suppressed.
        control: another concept suppressed.
        seed: of the bootstrap.

    Returns:
        `target`, `random` (both relative to the base rate) and `difference`.
    """
    arms = (base, target, control)
    sums = np.zeros((sum(len(arm.hit) for arm in arms), 3))
    start = 0
    for column, arm in enumerate(arms):
        sums[start : start + len(arm.hit), column] = arm.hit
        start += len(arm.hit)
    clusters = np.concatenate([arm.concept for arm in arms])
    statistics = {
        "target": lambda totals: 1 - ratio(totals[..., [1, 0]]),
        "random": lambda totals: 1 - ratio(totals[..., [2, 0]]),
        "difference": lambda totals: ratio(totals[..., [2, 0]]) - ratio(totals[..., [1, 0]]),
    }
    return {name: bootstrap(sums, statistic, clusters=clusters, seed=seed) for name, statistic in statistics.items()}


def _nats(ngram: NGramModel, prompt: Sequence[int], ids: Sequence[int]) -> float:
    return float(-ngram.logprobs(np.array([*prompt, *ids], dtype=np.int64))[len(prompt) :].sum())


def _paired(values: np.ndarray, arm: Arm, base_values: np.ndarray, base: Arm, seed: int) -> Interval:
    sums = _stacked(arm, values, np.ones_like(values), base, base_values, np.ones_like(base_values))
    return bootstrap(sums, difference, clusters=np.concatenate([arm.concept, base.concept]), seed=seed)


def _stacked(
    arm: Arm, top: np.ndarray, count: np.ndarray, base: Arm, base_top: np.ndarray, base_count: np.ndarray
) -> Float[np.ndarray, "n 4"]:
    sums = np.zeros((len(arm.concept) + len(base.concept), 4))
    sums[: len(arm.concept), 0], sums[: len(arm.concept), 1] = top, count
    sums[len(arm.concept) :, 2], sums[len(arm.concept) :, 3] = base_top, base_count
    return sums


def _ratio_of_ratios(totals: np.ndarray) -> np.ndarray:
    return np.asarray(ratio(totals[..., :2]) / ratio(totals[..., 2:]))
