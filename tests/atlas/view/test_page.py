"""The static page in a real browser, opened from the disk."""

import shutil
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.atlas.view.making import Spec, make_card, random_documents, write_annotated
from vitrail.atlas.view import PageSettings, layout, write_page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
AXE = (files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8")
VIOLATIONS = """axe.run({ resultTypes: ["violations"] }).then((found) =>
  found.violations.flatMap(({ id, nodes }) => nodes.map((node) => `${id}: ${node.target} ${node.failureSummary}`)))"""
HOSTILE = "<img src=x onerror=window.pwned=1></script><script>window.pwned=1</script>\u2028 «ü»"
NUM = 40
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
PATHS = (("Q Science", "QA Mathematics"), ("Q Science", "QC Physics"), ("P Language",), ())
KINDS = ("content", "tone", "demographic", "alignment")


@pytest.fixture(scope="module")
def documents() -> list[Spec]:
    return random_documents(5, num_documents=90, num_concepts=NUM)


@pytest.fixture(scope="module")
def annotated(documents: list[Spec], tmp_path_factory: pytest.TempPathFactory) -> Path:
    cards = [make_card(c, f"river {c}", KINDS[c % 4], PATHS[c % 4]) for c in range(NUM)]
    return write_annotated(tmp_path_factory.mktemp("page") / "annotated", cards, documents)


@pytest.fixture(scope="module")
def site(annotated: Path) -> Path:
    write_page(annotated, annotated.parent / "site", PageSettings(layout="pca", title="Rivers", documents=30))
    return annotated.parent / "site"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("needs a Chromium on the PATH")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield chromium
        chromium.close()


@pytest.fixture
def visit(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Opens a page from the disk; nothing may go wrong on it, and nothing may be asked of a network."""
    opened: list[Page] = []
    faults: list[str] = []

    def visiting(site: Path, address: str = "", width: int = 1280, scheme: Literal["light", "dark"] = "light") -> Page:
        page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("console", lambda line: faults.append(line.text) if line.type == "error" else None)
        page.on("request", lambda request: None if request.url.startswith("file:") else faults.append(request.url))
        page.goto((site / "index.html").resolve().as_uri() + address)
        page.locator("body[data-ready]").wait_for()
        opened.append(page)
        return page

    yield visiting
    for page in opened:
        page.close()
    assert faults == []


def _carrying(documents: list[Spec], concept: int) -> int:
    return sum(concept in spans for document in documents for _, spans in document.chunks)


def test_card_says_what_the_corpus_holds(visit: Callable[..., Page], site: Path, documents: list[Spec]) -> None:
    page = visit(site, "#concept-7")
    expect(page.locator("#card h2")).to_have_text("river 7")
    total = sum(len(document.chunks) for document in documents)
    share = 100 * _carrying(documents, 7) / total
    assert page.locator("#card .meta dd").first.inner_text() == f"{_carrying(documents, 7)} ({share:.1f}\u00a0% of all)"
    assert page.locator("#card blockquote mark").first.inner_text() == "word7"
    assert page.locator(".facts dd").nth(1).inner_text() == str(total)
    rows = page.locator("#card .rows").first.locator("li")
    counts = [int(text.split("(")[1].strip(")")) for text in rows.locator(".value").all_inner_texts()]
    assert sum(counts) == _carrying(documents, 7), "the sources together hold all its chunks"


def test_keyboard_alone_reaches_a_card(visit: Callable[..., Page], site: Path) -> None:
    page = visit(site)
    page.locator("#map").focus()
    page.keyboard.press("ArrowRight")
    name = page.locator("#card h2").inner_text()
    for key in ("ArrowUp", "ArrowDown", "ArrowLeft", "ArrowRight", "ArrowRight"):
        page.keyboard.press(key)
        if page.locator("#card h2").inner_text() != name:
            break
    expect(page.locator("#card h2")).not_to_have_text(name)
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "card"
    page.locator("#search").focus()
    page.keyboard.type("river 23")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.locator("#card h2")).to_have_text("river 23")
    assert page.url.endswith("#concept-23")


def test_search_counts_and_says_so_when_nothing_fits(visit: Callable[..., Page], site: Path) -> None:
    page = visit(site)
    page.get_by_label("Find a concept").fill("river 1")
    expect(page.locator("#found-text")).to_contain_text(
        f"{sum('1' in str(c) for c in range(NUM))} of {NUM} concepts fit"
    )
    assert page.locator("#found li").first.inner_text().startswith("river 1\n")
    page.get_by_label("Find a concept").fill("cathedral")
    expect(page.locator("#found-text")).to_contain_text(f"0 of {NUM}")
    assert page.locator("#found").is_hidden()


def test_a_click_on_the_map_chooses_what_is_drawn_there(visit: Callable[..., Page], site: Path) -> None:
    page = visit(site)
    place = page.evaluate("(() => { const c = bySize[0]; return [across(c), down(c), concepts.name[c]]; })()")
    page.locator("#map").click(position={"x": place[0], "y": place[1]})
    expect(page.locator("#card h2")).to_have_text(place[2])
    drawn = page.evaluate(
        "(() => { const box = [...pen.getImageData(0, 0, canvas.width, canvas.height).data];"
        " return new Set(box.map((v, i) => (i % 4 === 3 ? 0 : v))).size; })()"
    )
    assert drawn > 20, "the canvas shows colours"


def test_tree_counts_every_concept_once(visit: Callable[..., Page], site: Path, documents: list[Spec]) -> None:
    page = visit(site)
    page.get_by_role("tab", name="Tree").click()
    science = page.locator(".tree > details[data-branch='Q Science']")
    labels = sum(_carrying(documents, c) for c in range(NUM) if c % 4 in (0, 1))
    assert science.locator("summary").first.inner_text().endswith(f"{NUM // 2} concepts, {labels} labels")
    science.locator("summary").first.click()
    science.locator("summary", has_text="QC Physics").click()
    chips = science.locator("details[data-branch='QC Physics'] .chip")
    expect(chips).to_have_count(NUM // 4)
    chips.first.click()
    page.locator("#card .crumbs button", has_text="Q Science").click()
    assert page.evaluate("document.activeElement.textContent").startswith("Q Science")


def test_document_shows_its_chunks_and_marks(visit: Callable[..., Page], site: Path, documents: list[Spec]) -> None:
    page = visit(site, "#document-4")
    title = page.locator("#titles button[aria-current=true] bdi").inner_text()
    expect(page.locator("#document h2")).to_have_text(title)
    (document,) = (document for document in documents if document.title == title)
    expect(page.locator("#document .chunk")).to_have_count(len(document.chunks))
    spans = [text for text, carried in document.chunks for _ in carried]
    expect(page.locator("#document .span")).to_have_count(len(spans))
    mark = page.locator("#document .span").first
    word = mark.inner_text()
    mark.click()
    expect(page.locator("#card h2")).to_have_text(f"river {word.removeprefix('word')}")


def test_another_colour_reaches_every_view(visit: Callable[..., Page], site: Path) -> None:
    """Views that had been opened before kept the swatches of the old grouping."""
    page = visit(site)
    for tab in ("Tree", "Documents", "Sources", "Map"):
        page.get_by_role("tab", name=tab).click()
    page.locator("#document .chip").first.wait_for(state="attached")
    page.get_by_label("Colour by").select_option("kind")
    page.get_by_role("tab", name="Sources").click()
    expect(page.locator("#view-sources table")).to_have_count(1)
    for tab in ("Documents", "Tree"):
        page.get_by_role("tab", name=tab).click()
        if tab == "Tree":
            page.locator("summary", has_text="P Language").click()
        shown = page.locator(f"#view-{tab.lower()} .chip")
        shown.first.wait_for()
        wrong = "(chips) => chips.filter((chip) => !chip.firstChild.classList.contains(styleOf(chip.dataset.concept)))"
        assert shown.evaluate_all(wrong + ".length") == 0, tab


def test_lines_to_the_neighbours_go_with_their_concept(visit: Callable[..., Page], site: Path) -> None:
    """Until its card came, the lines ran from the new concept to the neighbours of the old one."""
    page = visit(site, "#concept-3")
    expect(page.locator("#card h2")).to_have_text("river 3")
    assert page.evaluate("near.length") > 0
    assert page.evaluate("(() => { select(30); return near.length; })()") == 0
    expect(page.locator("#card h2")).to_have_text("river 30")
    assert page.evaluate("near.length") > 0


def test_sources_are_listed_by_size(visit: Callable[..., Page], site: Path, documents: list[Spec]) -> None:
    page = visit(site)
    page.get_by_role("tab", name="Sources").click()
    page.get_by_label("Count by").last.select_option("source")
    sizes = {d.source: sum(len(e.chunks) for e in documents if e.source == d.source) for d in documents}
    rows = page.locator("#view-sources tbody tr")
    shown = {row.locator("td").nth(0).inner_text(): row.locator("td").nth(1).inner_text() for row in rows.all()}
    assert {name: int(text.split()[0]) for name, text in shown.items()} == sizes
    assert list(shown) == sorted(sizes, key=lambda name: (-sizes[name], name))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_accessible(visit: Callable[..., Page], site: Path, scheme: Literal["light", "dark"]) -> None:
    page = visit(site, "#concept-3", scheme=scheme)
    page.locator("#card h2").wait_for()
    page.evaluate(AXE)
    for tab in ("Map", "Tree", "Documents", "Sources"):
        page.get_by_role("tab", name=tab).click()
        assert page.evaluate(VIOLATIONS) == [], f"{tab} in {scheme}"


@pytest.mark.parametrize("width", [360, 400, 768])
def test_nothing_overflows_sideways(visit: Callable[..., Page], site: Path, width: int) -> None:
    page = visit(site, "#concept-3", width=width)
    page.locator("#card h2").wait_for()
    for tab in ("Map", "Tree", "Documents", "Sources"):
        page.get_by_role("tab", name=tab).click()
        assert page.evaluate("document.documentElement.scrollWidth") <= width, tab


def test_hostile_text_stays_text(visit: Callable[..., Page], tmp_path: Path) -> None:
    cards = [make_card(c, f"{HOSTILE} {c}", path=(HOSTILE,)) for c in range(3)]
    document = Spec("d", [("😀 " + HOSTILE, {0: [(2, 2 + len(HOSTILE))], 1: []})], HOSTILE, HOSTILE, HOSTILE)
    place = write_annotated(tmp_path / "a", cards, [document, Spec("e", [("x", {2: []})])])
    write_page(place, tmp_path / "site", PageSettings(title=HOSTILE, layout="pca"))
    page = visit(tmp_path / "site", "#concept-0")
    flat = " ".join(HOSTILE.split())
    expect(page.locator("#card h2")).to_contain_text(flat)
    for tab in ("Tree", "Documents", "Sources"):
        page.get_by_role("tab", name=tab).click()
    expect(page.locator("#document .span").first).to_have_text(flat)  # after a character of two code units
    assert page.evaluate("window.pwned") is None
    assert page.locator("img").count() == 0


def test_a_lost_shard_is_named(browser: Browser, site: Path, tmp_path: Path) -> None:
    shutil.copytree(site, tmp_path / "site")
    (tmp_path / "site" / "cards" / "00001.js").unlink()
    page = browser.new_page()
    page.goto((tmp_path / "site" / "index.html").as_uri() + "#concept-39")
    expect(page.get_by_role("alert")).to_contain_text("cards/00001.js cannot be read")
    page.goto((tmp_path / "site" / "index.html").as_uri() + "#concept-2")
    page.reload()
    expect(page.locator("#card h2")).to_have_text("river 2")
    page.close()


def test_thousands_of_concepts_stay_fast(visit: Callable[..., Page], tmp_path: Path) -> None:
    num = 8_000
    cards = [make_card(c, f"river {c}", path=(f"class {c % 21}",)) for c in range(num)]
    documents = [Spec(f"d{n}", [(f"word{c}", {c: [(0, 4)]}) for c in range(n, num, 16)]) for n in range(16)]
    place = write_annotated(tmp_path / "a", cards, documents)
    write_page(place, tmp_path / "site", PageSettings(layout="pca", examples=1, documents=2))
    assert (tmp_path / "site" / "index.html").stat().st_size < 2_000_000
    page = visit(tmp_path / "site")
    paint_ms = page.evaluate("(() => { const from = performance.now(); paint(); return performance.now() - from; })()")
    assert paint_ms < 500, "one frame of 8,000 marks; about 40 ms on an idle core"
    page.get_by_label("Find a concept").fill("river 7999")
    page.keyboard.press("Enter")
    expect(page.locator("#card h2")).to_have_text("river 7999")


def test_same_corpus_same_page(annotated: Path, site: Path, tmp_path: Path) -> None:
    settings = PageSettings(layout="pca", title="Rivers", documents=30)
    first, again = write_page(annotated, site, settings), write_page(annotated, tmp_path / "again", settings)
    assert first.files == again.files
    assert first.id == again.id
    assert write_page(annotated, tmp_path / "other", settings.model_copy(update={"seed": 1})).files != again.files


def test_what_auto_means_is_part_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After UMAP was installed, the page of before still counted as done."""
    annotated = write_annotated(tmp_path / "a", [make_card(0, "river")], random_documents(1, 5, 1))
    settings = PageSettings(documents=0, examples=0)
    monkeypatch.setattr(layout, "find_spec", lambda _: None)
    before = write_page(annotated, tmp_path / "auto", settings)
    named = settings.model_copy(update={"layout": "pca"})
    assert write_page(annotated, tmp_path / "pca", named).id == before.id
    monkeypatch.setattr(layout, "find_spec", lambda _: True)
    assert write_page(annotated, tmp_path / "auto", settings).id != before.id
