"""The experiments: every arm is a valid run, and the tables of the page are those of the results."""

import sys
from pathlib import Path
from types import ModuleType

import pytest

EXPERIMENTS = Path(__file__).parents[1] / "experiments"


def _load(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(EXPERIMENTS))
    for module in ("tables", name):
        monkeypatch.delitem(sys.modules, module, raising=False)
    return __import__(name)


def test_every_arm_is_a_run_that_differs_from_the_base(monkeypatch: pytest.MonkeyPatch) -> None:
    ablations, report = _load("ablations", monkeypatch), _load("report", monkeypatch)
    base = ablations.settings_of("base", 0, None)
    for arm in ablations.ARMS:
        settings = ablations.settings_of(arm, 0, None)
        assert (settings == base) == (arm == "base")
        assert settings.total_tokens == base.total_tokens
    assert set(report.WORDS) == set(ablations.ARMS)


def test_the_page_holds_the_tables_of_the_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run experiments/report.py to renew it."""
    report = _load("report", monkeypatch)
    page = report.PAGE.read_text(encoding="utf-8")
    assert page.count("<!-- table: ") == len(report.TABLES)
    assert report.filled(page) == page
    for name in report.TABLES:
        assert (report.RESULTS / f"{name}.csv").is_file()


def test_rows_are_added_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables, path = _load("tables", monkeypatch), tmp_path / "results" / "a.csv"
    assert tables.rows_in(path) == []
    tables.add_row(path, ("arm", "loss"), {"arm": "base", "loss": 1.23456789, "other": 3})
    tables.add_row(path, ("arm", "loss"), {"arm": "plain"})
    assert tables.rows_in(path) == [{"arm": "base", "loss": "1.2346"}, {"arm": "plain", "loss": ""}]
    assert [entry.name for entry in path.parent.iterdir()] == ["a.csv"]
