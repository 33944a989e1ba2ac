"""The report must be true to its data, inert whatever the text, alone in one file, and usable by keyboard."""

import json
import re
import shutil
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from vitrail.demo.report import (
    ConceptCard,
    LineageEntry,
    ReportData,
    ReportMeta,
    SteeringPair,
    TrainingPoint,
    aims,
    write_report,
)
from vitrail.demo.report.charts import nice_ticks, tracks
from vitrail.demo.report.figures import Figure, difference, figure
from vitrail.demo.report.formats import decimals, duration, mark_words
from vitrail.demo.report.page import render
from vitrail.demo.report.palette import assign_hues
from vitrail.demo.report.payload import page_payload
from vitrail.demo.report.window import lancets, rose

HOSTILE = (
    '</script><script>window.pwned=1</script><img src=x onerror="window.pwned=1">\'"&`{{7*7}}\u202eabc 🦜\u2028\x00'
)
NUM_TOKENS, NUM_KNOWN = 7, 13
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def _place(rng: np.random.Generator, name: str) -> dict[str, Any]:
    ranked = [
        {
            "head": "known" if place < 9 else "discovered",
            "concept_id": place,
            "name": name.format(place),
            "contribution": float(rng.normal(0.4)),
            "centred": float(rng.normal(0.3)),
            "weight": float(rng.uniform()),
        }
        for place in rng.permutation(NUM_KNOWN).tolist()
    ]
    sums = {
        head + suffix: sum(entry[field] for entry in ranked if entry["head"] == head) + 0.25
        for field, suffix in (("contribution", ""), ("centred", "_centred"))
        for head in ("known", "discovered")
    }
    whole = {**sums, "residual": 0.5, "residual_centred": 0.375}
    logit = whole["known"] + whole["discovered"] + whole["residual"]
    return {
        **whole,
        "unlisted_known": 0.25,
        "unlisted_discovered": 0.25,
        "token_logit": logit,
        "ranked": ranked,
    }


def _explanation(text: str = "word", name: str = "concept {}", seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    ranked = [{"pos": 1, "where": "prompt", "text": text, "score": 0.8}]
    hit = {"row": 1, "chunk_id": "c", "document_id": "d", "title": text, "source": text, "license": text}
    hit |= {"similarity": 0.83, "text": f"before {text} after", "overlap": {"text": text, "num_tokens": 5}}
    shares = {"prompt_share": 0.7, "generated_share": 0.3, "injection_share": 0.0, "completeness_gap": 0.01}
    return {
        "format": "vitrail.explanation/1",
        "prompt_tokens": [{"pos": pos, "id": 5, "text": f" {text}"} for pos in range(3)],
        "tokens": [
            {
                "pos": pos,
                "id": 5,
                "text": f" {text}",
                "step": (pos * 3) % NUM_TOKENS,
                "logit": 1.0,
                "prob": 0.4,
            }
            for pos in range(NUM_TOKENS)
        ],
        "chunks": [{"chunk": 0, "start": 0, "stop": NUM_TOKENS, "text": text}],
        "inputs": {
            "chunks": [{"chunk": 0, "scores": [0.1, 0.8, -0.2], "ranked": ranked, **shares}],
            "tokens": [{"pos": pos, "ranked": ranked, "completeness_gap": 0.02} for pos in range(NUM_TOKENS)],
        },
        "concepts": {
            "chunks": [{"chunk": 0, **_place(rng, name)}],
            "tokens": [{"pos": pos, **_place(rng, name)} for pos in range(NUM_TOKENS)],
        },
        "sources": {"note": "similarity is not influence", "chunks": [{"chunk": 0, "hits": [hit]}]},
        "certificate": {
            "passed": True,
            "dtype": "float32",
            "max_abs_error": 9.5e-7,
            "tolerance": 1e-4,
            "num_tokens": 7,
        },
    }


SUMMARY: dict[str, Any] = {
    "wall_s": 432.4,
    "peak_rss_bytes": 2.3e9,
    "stages": {"corpus": 21.3, "train": 221.5},
    "bits_per_byte": {"model": 2.41, "unigram": 2.88, "bigram": 2.35, "n": 400, "ci95": [2.38, 2.44]},
    "concepts": {
        "count": 96,
        "auc_macro": 0.88,
        "map": 0.41,
        "base_rate": 0.021,
        "num_scored": 88,
        "ci95": {"auc_macro": [0.86, 0.9]},
    },
    "deletion_nats": {
        name: {"mean": cost, "resample": cost, "zero": cost, "ci95": {"mean": [cost - 0.03, cost + 0.03]}}
        for name, cost in (("known", 0.38), ("random", 0.05))
    }
    | {"n": 4096},
    "steering": {
        "after": {
            "target": {"rate": 0.21, "n": 960, "ci95": [0.18, 0.24]},
            "unsteered": {"rate": 0.03, "n": 960, "ci95": [0.02, 0.05]},
            "curve": [
                {
                    "strength": s,
                    "hit": 0.1 * s,
                    "ci95": [0.08 * s, 0.12 * s],
                    "n": 320,
                    "perplexity_ratio": 1 + s,
                }
                for s in (0.5, 1.0, 2.0)
            ],
        },
        "perplexity_ratio": 2.7,
    },
}


def _data(text: str = "word", name: str = "concept {}", **changed: Any) -> ReportData:
    cards = [
        ConceptCard(
            concept_id=place,
            name=name.format(place),
            description=text,
            words=(text,),
            num_chunks=10,
            examples=(text,),
            top_tokens=(f" {text}",),
        )
        for place in range(NUM_KNOWN)
    ]
    pair = SteeringPair(
        concept=name.format(0), strength=1.0, prompt=text, unsteered=text, amplified=text, suppressed="quiet"
    )
    fields: dict[str, Any] = {
        "meta": ReportMeta(title=text, machine=text, versions={"vitrail": text}),
        "summary": SUMMARY,
        "explanation": _explanation(text, name),
        "steering_pairs": (pair,) * 5,
        "cards": tuple(cards),
        "training_log": tuple(TrainingPoint(tokens=1000 * step, loss=7 - step / 10) for step in range(20)),
        "lineage": (LineageEntry(kind="corpus", id="a" * 64, counts={"num_documents": 3}),),
    }
    return ReportData(**{**fields, **changed})


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def _tags(html: str) -> list[tuple[str, dict[str, str | None]]]:
    parser = _Tags()
    parser.feed(html)
    return parser.found


def test_hostile_text_stays_text() -> None:
    tags = _tags(render(_data(HOSTILE, name=HOSTILE.replace("{", "").replace("}", "") + "{}")))
    names = [tag for tag, _ in tags]
    assert names.count("script") == 2, "text from the model opened a script element"
    assert "img" not in names
    assert not [attrs for _, attrs in tags if any(key.startswith("on") or key == "style" for key in attrs)]


def test_page_refers_to_nothing_outside_itself() -> None:
    for tag, attrs in _tags(render(_data())):
        for key in ("src", "href", "action", "xlink:href"):
            target = attrs.get(key) or "#"
            assert target.startswith(("#", "data:image/svg+xml,")), f"<{tag} {key}={target!r}> leaves the file"
    script = (Path(__file__).parents[2] / "src/vitrail/demo/report/page.js").read_text(encoding="utf-8")
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|fetch|XMLHttp", script)


def test_same_data_same_bytes(tmp_path: Path) -> None:
    for name in ("a.html", "b.html"):
        write_report(tmp_path / name, _data())
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


def test_missing_figures_are_said_to_be_missing() -> None:
    html = render(
        ReportData(meta=ReportMeta(), summary={"bits_per_byte": None, "wall_s": float("nan")}, explanation={})
    )
    assert html.count("not measured") > 15
    assert "nan" not in re.sub(r"<(script|style).*?</\1>", "", html, flags=re.S).lower().replace("finance", "")
    assert {row.verdict for row in aims({})} == {"not measured"}


def test_aims_are_judged_on_the_figures() -> None:
    verdicts = {row.name: row.verdict for row in aims(SUMMARY)}
    assert verdicts["Bits per byte of unseen text"] == "reached"
    assert verdicts["Finding concepts in unseen text (AUC)"] == "missed"
    assert verdicts["… against random directions of the same size"] == "reached"
    assert verdicts["Turned up: hits above the unsteered text"] == "reached"
    assert verdicts["Turned up: hits above a random concept"] == "not measured"


def test_perplexity_beyond_the_limit_is_a_miss() -> None:
    steering = {**SUMMARY["steering"], "perplexity_ratio": 3.5}
    verdicts = {row.name: row.verdict for row in aims({**SUMMARY, "steering": steering})}
    assert verdicts["Turned up: hits above the unsteered text"] == "missed"


def test_figures_are_read_with_their_intervals() -> None:
    group = {
        "a": 1.0,
        "b": {"rate": 0.5, "n": 3, "ci95": [0.4, 0.6]},
        "c": None,
        "n": 7,
        "ci95": {"a": [0.9, 1.1]},
    }
    assert figure(group, "a") == Figure(1.0, 0.9, 1.1, 7)
    assert figure(group, "b") == Figure(0.5, 0.4, 0.6, 3)
    assert figure(group, "c") == Figure(None, None, None, 7)
    assert figure({"a": 1.0, "b": 2.0, "ci95": [0, 2]}, "b").low is None, "the pair belongs to the main figure"


def test_difference_has_newcombes_interval() -> None:
    # Worked by hand: 0.5 − hypot(0.03, 0.04) and 0.5 + hypot(0.06, 0.08).
    found = difference(Figure(0.7, 0.67, 0.76, 50), Figure(0.2, 0.12, 0.24, 40))
    assert found.value == pytest.approx(0.5)
    assert [found.low, found.high] == pytest.approx([0.45, 0.6])
    assert found.n == 40


@pytest.mark.parametrize("mode", ["raw", "centred"])
def test_shown_pieces_add_up(mode: str) -> None:
    """Concepts that the page leaves out move into the sum of their head, so nothing is lost."""
    explanation = _explanation()
    payload = page_payload(explanation, (), {})
    for token in explanation["concepts"]["tokens"]:
        shown = payload["concepts"]["tokens"][str(token["pos"])]
        column = 1 if mode == "raw" else 2
        sums, suffix = shown[mode], "" if mode == "raw" else "_centred"
        pieces = sum(entry[column] for entry in shown["ranked"]) + sums["otherKnown"] + sums["otherDiscovered"]
        assert len(shown["ranked"]) < len(token["ranked"]), "the test is about cut lists"
        assert pieces == pytest.approx(token["known" + suffix] + token["discovered" + suffix], abs=1e-9)


def test_window_is_the_data() -> None:
    explanation = _explanation()
    hues = assign_hues(explanation, ())
    for panes in (rose(explanation, hues), *(lancet.panes for lancet in lancets(explanation, hues))):
        assert sum(pane.share for pane in panes) == pytest.approx(1)
    total = sum(token["known_centred"] + token["discovered_centred"] for token in explanation["concepts"]["tokens"])
    shown = sum(pane.value for pane in rose(explanation, hues) if pane.key != "residual")
    assert shown == pytest.approx(total, abs=1e-6)


def test_neighbours_in_the_window_have_different_colours() -> None:
    hues = assign_hues(_explanation(), ())
    assert len(set(hues.values())) == len(hues)


def test_words_are_marked_whole_and_nothing_is_lost() -> None:
    text = "Subgraphs: a subgraph is no subgraphical thing; A+B stays."
    pieces = mark_words(text, ["subgraph", "a+b", ""])
    assert "".join(piece.text for piece in pieces) == text
    assert [piece.text for piece in pieces if piece.is_marked] == ["Subgraphs", "subgraph", "A+B"]


@pytest.mark.parametrize(
    ("value", "shown"), [(None, "not measured"), (-0.25, "−0.25"), (9.5e-7, "9.5 × 10⁻⁷"), (0.004, "0.004")]
)
def test_numbers_read_well(value: float | None, shown: str) -> None:
    assert decimals(value).replace("\u00a0", " ") == shown


def test_durations_read_well() -> None:
    assert [duration(s).replace("\u00a0", " ") for s in (3.21, 45, 432.4, 7300)] == [
        "3.2 s",
        "45 s",
        "7 min 12 s",
        "2 h 1 min",
    ]


def test_scales_hold_all_bounds() -> None:
    rows = tracks([("a", Figure(-0.2, -0.5, 0.1), ""), ("b", Figure(0.6, 0.5, 0.7), ""), ("c", Figure(), "")])
    places = [place for row in rows for place in (row.at, row.low, row.high) if place is not None]
    assert 0 <= min(places) < rows[0].zero < max(places) <= 100
    assert rows[2].at is None
    ticks = nice_ticks(0.13, 0.97)
    assert (ticks[0], ticks[-1]) == (0.0, 1.0)


def test_a_large_report_stays_small(tmp_path: Path) -> None:
    cards = tuple(
        ConceptCard(concept_id=place, name=f"concept {place}", words=("word",) * 10, examples=("text " * 200,) * 5)
        for place in range(512)
    )
    write_report(tmp_path / "report.html", _data(cards=cards))
    assert (tmp_path / "report.html").stat().st_size < 1_500_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield chromium
        chromium.close()


def _open(browser: Browser, path: Path) -> tuple[Page, list[str]]:
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda line: faults.append(line.text) if line.type == "error" else None)
    page.on("request", lambda request: faults.append(request.url) if request.url.startswith("http") else None)
    page.goto(path.resolve().as_uri())
    return page, faults


def test_page_in_a_browser(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_report(path, _data())
    page, faults = _open(browser, path)
    first = page.locator("#answer .token").first
    first.click()
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.textContent") == "word"
    assert page.locator("#answer [aria-pressed=true]").count() == 1
    page.get_by_label("whole score").check()
    written = [_signed(text) for text in page.locator("#concepts .term b").all_inner_texts()]
    assert sum(written[:3]) == pytest.approx(written[3], abs=0.02), "the shown parts do not sum to the shown score"
    assert page.locator("#sources mark").inner_text() == "word"
    page.locator("#step").fill("2")
    assert page.locator("#answer .blank").count() == NUM_TOKENS - 2
    page.get_by_label("Search the library").fill("concept 12")
    assert page.locator("#cards .card:visible").count() == 1
    assert faults == []


def test_hostile_page_in_a_browser(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_report(path, _data(HOSTILE))
    page, faults = _open(browser, path)
    page.locator("#answer .token").first.click()
    assert page.evaluate("window.pwned") is None
    assert page.locator("img").count() == 0
    assert "onerror" in page.locator("#sources").inner_text(), "the passage is shown as it is"
    assert faults == []


def test_nothing_overflows_sideways(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_report(path, _data("a-very-long-unbroken-" * 12))
    page, _ = _open(browser, path)
    for width in (360, 768, 1280, 2200):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_empty_explanation_in_a_browser(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_report(path, ReportData(meta=ReportMeta(), summary={}, explanation={}))
    _, faults = _open(browser, path)
    assert faults == []


def _signed(text: str) -> float:
    return float(json.loads(text.replace("\u2212", "-").replace("+", "").replace(",", "")))
