"""The dial: more time gives more tokens and never a smaller model."""

from itertools import pairwise

import pytest

from vitrail.train.schedules import value_at
from vitrail.train.sizes import phases_for


def test_more_time_never_shrinks_the_model() -> None:
    runs = [phases_for(seconds).main for seconds in (5.0, 60.0, 200.0, 600.0, 1800.0, 7200.0, 36000.0)]
    for small, large in pairwise(runs):
        assert small.model.width <= large.model.width
        assert small.total_tokens * small.model.width <= large.total_tokens * large.model.width
    assert runs[0].model.width < runs[-1].model.width


def test_the_control_differs_from_the_steering_phase_by_steering_alone() -> None:
    phases = phases_for(200.0, seed=3)
    assert phases.steering.steering is not None
    assert phases.control == phases.steering.model_copy(update={"steering": None})
    assert phases.main.steering is None
    assert phases.main.seed != phases.steering.seed, "the phase reads other batches than the main run began with"


def test_shares_of_the_time() -> None:
    phases = phases_for(200.0)
    total = phases.main.total_tokens + 2 * phases.steering.total_tokens
    assert phases.main.total_tokens == pytest.approx(0.72 * total, rel=0.05)
    assert value_at(phases.steering.compose.known_forcing, 0.0) == 0.0
    assert phases.steering.optim.matrix_rate < phases.main.optim.matrix_rate
