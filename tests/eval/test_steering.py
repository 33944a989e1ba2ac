import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.metrics.toy import CONCEPTS, Toy, make_reader, make_toy
from vitrail.atlas.judge import Judge, KeywordScore
from vitrail.eval.arms import (
    Arm,
    Judges,
    distinct2_ratio,
    distinct_2,
    perplexity_ratio,
    rate_difference,
    relative_drops,
)
from vitrail.eval.prompts import carrying_items, draw_concepts, plain_items
from vitrail.eval.steering import (
    SteeringSettings,
    Variant,
    benchmark_concepts,
    choose_strength,
    steering_benchmark,
)
from vitrail.metrics.ngram import fit_ngram
from vitrail.steer import calibrate

SMALL = SteeringSettings(
    num_concepts=6,
    prompts=4,
    prompts_of_others=2,
    tuning_prompts=2,
    suppression_prompts=6,
    strengths=(0.5, 1.0, 2.0),
    prompt_tokens=8,
    carrying_tokens=16,
    new_tokens=16,
    tokens_per_step=4,
)


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    return make_toy(tmp_path_factory.mktemp("toy"))


@pytest.fixture(scope="module")
def judges(toy: Toy) -> Judges:
    judge = Judge.fit(toy.annotated.chunks(), benchmark_concepts(toy.library, SMALL), num_words=7)
    return Judges(judge, KeywordScore(toy.library), fit_ngram(toy.packed, 2), toy.packed.tokenizer())


@pytest.fixture(scope="module")
def variant(toy: Toy) -> Variant:
    """A model that takes over the concepts of its context: something to steer, and to suppress."""
    model = make_reader(toy, attention=12.0)
    sequences = toy.packed.batch("heldout", range(toy.packed.num_sequences("heldout"))).tokens
    return Variant(model, calibrate(model, sequences, layer=1, num_positions=32))


def test_benchmark_sees_a_model_that_obeys(toy: Toy, judges: Judges, variant: Variant) -> None:
    done: list[float] = []
    found = steering_benchmark(
        {"before": variant, "after": variant},
        toy.library,
        toy.chunks("heldout"),
        judges,
        SMALL,
        on_progress=done.append,
    )
    json.dumps(found, allow_nan=False)
    after = found["after"]
    assert after["target"]["n"] == 6 * 4
    assert found["before"]["target"]["n"] == 6 * 2
    assert after["target_minus_unsteered"]["value"] > 0.3
    assert after["target_minus_random"]["value"] > 0.3
    assert after["suppression"]["relative_drop_target"] > 0.5
    assert after["suppression"]["relative_drop_difference"] > 0.1
    assert [point["strength"] for point in found["curve"]] == [0.0, 0.5, 1.0, 2.0]
    assert found["num_concepts"] == 6
    assert done == [0.5, 1.0]
    for name in ("target", "unsteered", "random", "suppressed"):
        low, high = after[name]["ci95"]
        assert 0 <= low <= after[name]["rate"] <= high <= 1


def test_same_seed_same_table(toy: Toy, judges: Judges, variant: Variant) -> None:
    tiny = SMALL.model_copy(update={"prompts": 1, "suppression_prompts": 1, "strengths": (1.0,)})
    one, other = (
        steering_benchmark({"after": variant}, toy.library, toy.chunks("heldout"), judges, tiny) for _ in range(2)
    )
    assert one == other


def test_no_concept_is_excluded_and_seeds_differ() -> None:
    assert draw_concepts(13, 13, seed=0) == list(range(13))
    assert draw_concepts(97, 31, seed=0) != draw_concepts(97, 31, seed=1)


def test_plain_prompts_do_not_carry_the_concept_and_carrying_ones_do(toy: Toy) -> None:
    chunks, tokenizer = toy.chunks("heldout"), toy.packed.tokenizer()
    plain = plain_items(chunks, tokenizer, [0, 3], 6, per_concept=5, num_tokens=30, seed=0)
    carrying = carrying_items(chunks, tokenizer, [0, 3], 6, per_concept=5, num_tokens=9, seed=0)
    for concept_id, without, having in zip([0, 3], plain, carrying, strict=True):
        words = list(CONCEPTS.values())[concept_id]
        assert len(without) == 5
        assert len(having) > 0
        for item in without:
            assert item.concept_id == concept_id != item.other_id
            assert not any(word in tokenizer.decode(item.prompt) for word in words)
        for item in having:
            assert tokenizer.decode(item.prompt).endswith(words)
            assert len(item.prompt) <= 9


def arm_of(hits: list[int], concept: list[int], nats: float = 2.0, distinct: float = 0.5) -> Arm:
    ones = np.ones(len(hits))
    clusters = np.array(concept)
    return Arm(
        ("",) * len(hits),
        clusters,
        np.array(hits, dtype=np.float64),
        np.array(hits, dtype=np.float64),
        nats * ones,
        ones,
        distinct * ones,
    )


def test_figures_of_arms_worked_by_hand() -> None:
    base, target = (
        arm_of([0, 0, 1, 0], [0, 0, 1, 1]),
        arm_of([1, 1, 1, 0], [0, 0, 1, 1], nats=3.0, distinct=0.4),
    )
    assert rate_difference(target, base, 0).value == 0.5
    assert perplexity_ratio(target, base, 0).value == pytest.approx(np.e)
    assert distinct2_ratio(target, base, 0).value == pytest.approx(0.8)
    drops = relative_drops(target, base, arm_of([1, 1, 0, 0], [0, 0, 1, 1]), 0)
    assert drops["target"].value == pytest.approx(2 / 3)
    assert drops["random"].value == pytest.approx(1 / 3)
    assert drops["difference"].value == pytest.approx(1 / 3)


def test_distinct_2_shows_repetition() -> None:
    assert distinct_2([1, 2, 3, 4]) == 1.0
    assert distinct_2([5] * 11) == 0.1
    assert distinct_2([5]) == 1.0


def point(strength: float, hit: float, perplexity: float, distinct: float = 1.0) -> dict[str, float]:
    return {"strength": strength, "hit": hit, "perplexity_ratio": perplexity, "distinct2_ratio": distinct}


def test_the_best_strength_within_the_limit() -> None:
    curve = [point(0.0, 0.0, 1.0), point(0.5, 0.1, 1.1), point(1.0, 0.4, 2.0), point(2.0, 0.6, 8.0)]
    assert choose_strength(curve, 100.0) == 2.0
    assert 1.0 < choose_strength(curve, 3.0) < 1.35
    assert choose_strength(curve, 1.25) < 0.65
    repeated = [*curve[:3], point(2.0, 0.9, 1.0, distinct=0.2)]
    assert choose_strength(repeated, 3.0) < 1.3


@settings(max_examples=20, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=5), st.floats(1.01, 5))
def test_a_strength_is_always_chosen(hits: list[int], limit: float) -> None:
    curve = [point(0.5 * number, hit, np.exp(number)) for number, hit in enumerate([0.0, *hits])]
    assert 0 < choose_strength(curve, limit) <= curve[-1]["strength"]
