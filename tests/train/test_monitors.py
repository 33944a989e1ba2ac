"""Each warning of §9.4 comes once when its bound is passed, and a resumed run does not repeat it."""

from vitrail.train.monitors import Monitors


def test_mask_rate_warns_once() -> None:
    monitors = Monitors()
    assert monitors.mask_rate(0.5) == []
    assert "0.51" in monitors.mask_rate(0.51)[0]
    assert monitors.mask_rate(0.6) == []
    assert Monitors(monitors.memory).mask_rate(0.6) == [], "it remembers having said it"


def test_independence_is_compared_with_its_minimum() -> None:
    monitors = Monitors()
    assert [monitors.independence(v) for v in (0.3, 0.1, 0.29)] == [[], [], []]
    assert "minimum 0.1" in monitors.independence(0.31)[0]


def test_probe_is_compared_with_its_peak() -> None:
    monitors = Monitors()
    assert [monitors.probe("accuracy", v) for v in (0.2, 0.4, 0.37)] == [[], [], []]
    assert "accuracy 0.350" in monitors.probe("accuracy", 0.35)[0]


def test_a_small_probe_must_fall_by_more_than_its_noise() -> None:
    monitors = Monitors()
    found = [{"accuracy": 0.4, "probe_a": value} for value in (0.5, 0.35, 0.2)]
    assert monitors.heldout(found[0], 32) == []
    assert monitors.heldout(found[1], 32) == [], "two standard errors of 32 questions are 0.18"
    assert "probe_a" in monitors.heldout(found[2], 32)[0]
    assert "probe_b" in next(iter(Monitors({"peak_probe_b": 0.5}).heldout({"probe_b": 0.35}, 1000)))


def test_deaf_concepts() -> None:
    assert Monitors().deaf(0.2) == []
    assert "40%" in Monitors().deaf(0.4)[0]


def test_nothing_to_compare_without_held_out_sequences() -> None:
    assert Monitors().heldout({}) == []
