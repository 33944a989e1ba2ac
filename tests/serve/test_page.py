"""The page in a real browser over a real server: every flow, what it shows against the API, faults, access."""

import itertools
import json
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import httpx
import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, Route, expect, sync_playwright

from tests.serve.conftest import BLOCK, NUM_DISCOVERED, TOPICS, Server

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs a Chromium on the PATH")

PROMPT, SEED, TOKENS = "the river and the delta", 7, 40
REQUEST = {"prompt": PROMPT, "max_tokens": TOKENS, "temperature": 0.7, "top_p": 0.9, "seed": SEED}
REQUEST |= {"repetition_penalty": 1.5, "tokens_per_step": 1}
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
HOSTILE = "<img src=x onerror=window.pwned=1><script>window.pwned=1</script>"
AXE = (files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8")
VIOLATIONS = """axe.run({ resultTypes: ["violations"] }).then((found) =>
  found.violations.flatMap(({ id, nodes }) => nodes.map((node) => `${id}: ${node.target} ${node.failureSummary}`)))"""

# Before any script of the page: which panes were masked, and the order in which they were lit.
RECORD = """
window.record = { masked: 0, order: [], isTold: false };
document.addEventListener("DOMContentLoaded", () => {
  const box = document.getElementById("answer-text");
  new MutationObserver((changes) => {
    window.record.masked = Math.max(window.record.masked, box.querySelectorAll(".masked").length);
    for (const { target } of changes) {
      if (!target.classList?.contains("struck")) continue;
      const place = [...box.children].indexOf(target.parentElement);
      if (place >= 0 && !window.record.order.includes(place)) window.record.order.push(place);
      if (window.record.order.length < 3 || window.record.isTold) continue;
      window.record.isTold = true;
      window.atThird?.();
    }
  }).observe(box, { subtree: true, attributes: true, attributeFilter: ["class"], childList: true });
});
"""


@dataclass
class Seen:
    """A page and what went wrong on it.

    Attributes:
        page: the page.
        faults: console errors, uncaught errors, requests to other hosts.
        are_refusals_expected: answers of 4xx and 5xx, and broken connections, are part of the test.
    """

    page: Page
    host: str
    faults: list[str] = field(default_factory=list)
    are_refusals_expected: bool = False

    def watch(self) -> None:
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.faults.append(f"uncaught: {error}"))
        self.page.on("request", self._request)

    def _console(self, message: ConsoleMessage) -> None:
        is_refusal = message.text.startswith("Failed to load resource")
        if message.type == "error" and not (is_refusal and self.are_refusals_expected):
            self.faults.append(message.text)

    def _request(self, request: Request) -> None:
        if not request.url.startswith((self.host, "data:", "blob:")):
            self.faults.append(f"another host: {request.url}")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield chromium
        chromium.close()


@pytest.fixture
def open_page(browser: Browser, server: Server) -> Iterator[Callable[..., Seen]]:
    """Opens pages; at the end nothing may have gone wrong on any of them."""
    opened: list[Seen] = []

    def opening(path: str = "/", *, is_calm: bool = True, **options: Any) -> Seen:
        context = browser.new_context(reduced_motion="reduce" if is_calm else "no-preference", **options)
        seen = Seen(context.new_page(), server.url)
        seen.watch()
        seen.page.add_init_script(RECORD)
        seen.page.goto(server.url + path)
        seen.page.locator("body[data-ready]").wait_for()
        opened.append(seen)
        return seen

    yield opening
    for seen in opened:
        seen.page.context.close()
    assert [fault for seen in opened for fault in seen.faults] == []


@pytest.fixture(scope="module")
def explained(browser: Browser, server: Server) -> Iterator[Page]:
    """One page with the answer that the tests ask for, shared by those that only read it and choose in it."""
    seen = Seen(browser.new_context(reduced_motion="reduce").new_page(), server.url)
    seen.watch()
    seen.page.goto(server.url)
    seen.page.locator("body[data-ready]").wait_for()
    write(seen.page)
    yield seen.page
    seen.page.context.close()
    assert seen.faults == []


@pytest.fixture(scope="module")
def doc(server: Server) -> dict[str, Any]:
    """The explanation of the request that the tests make, as the API gives it."""
    return post(server, "explain", REQUEST)


def post(server: Server, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = httpx.post(f"{server.url}/v1/{path}", json=body, timeout=60)
    answer.raise_for_status()
    return dict(answer.json())


def fill(page: Page, prompt: str = PROMPT, tokens: int = TOKENS, seed: int = SEED) -> None:
    page.locator("#ask-prompt").fill(prompt)
    page.locator("#sampling").evaluate("node => { node.open = true }")
    page.locator("#ask-max_tokens").fill(str(tokens))
    page.locator("#ask-seed").fill(str(seed))


def write(page: Page, **values: Any) -> None:
    """Ask, and wait for the explanation."""
    fill(page, **values)
    page.get_by_role("button", name="Write", exact=True).click()
    page.locator("body[data-stage=explained]").wait_for(timeout=60_000)


def signed(value: float) -> str:
    text = f"{abs(value):,.2f}"
    return text if float(text.replace(",", "")) == 0 else ("+" if value > 0 else "\u2212") + text


def shown(text: str) -> str:
    """What a token looks like on the page."""
    if text.startswith("<|") and text.endswith("|>"):
        return "¶"
    return text.lstrip(" \t").replace("\r\n", "↵").replace("\n", "↵") or "·"


def tokens_of(page: Page) -> list[str]:
    return page.locator("#answer-text button.token").all_text_contents()


def test_streams_in_the_order_of_denoising_and_explains(
    open_page: Callable[..., Seen], server: Server, doc: dict[str, Any]
) -> None:
    page = open_page(is_calm=False).page
    write(page)
    commits = post(server, "completions", {**REQUEST, "commits": True})["choices"][0]["vitrail"]["commits"]
    order = [place for commit in commits for place in commit["positions"]]
    record = page.evaluate("window.record")
    assert record["order"] == [place for place in order if place < len(record["order"])] == order
    assert record["masked"] >= BLOCK - 1, "the panes of the open block are there, dark, before their tokens"
    assert tokens_of(page) == [shown(token["text"]) for token in doc["tokens"]]
    expect(page.locator("#prompt-text")).to_contain_text(PROMPT)
    expect(page.locator("#window svg.explained")).to_have_count(1)


def test_panels_show_the_numbers_of_the_api(explained: Page, doc: dict[str, Any]) -> None:
    page = explained
    place = 5
    page.locator("#answer-text button.token").nth(place).click()
    item, inputs = doc["concepts"]["tokens"][place], doc["inputs"]["tokens"][place]
    values = page.locator("#concepts .row .value").all_inner_texts()
    by_size = sorted(item["ranked"], key=lambda entry: -abs(entry["centred"]))
    assert values[: len(by_size)] == [signed(entry["centred"]) for entry in by_size]
    names = page.locator("#concepts .row .name bdi").all_inner_texts()
    assert names == [entry["name"] for entry in by_size]
    sums = [item["known_centred"], item["discovered_centred"], item["residual_centred"]]
    assert page.locator("#concepts .sum b").all_inner_texts() == [signed(value) for value in [*sums, sum(sums)]]

    page.get_by_role("radio", name="raw").check()
    sums = [item["known"], item["discovered"], item["residual"]]
    assert page.locator("#concepts .sum b").all_inner_texts() == [signed(value) for value in [*sums, sum(sums)]]
    rows = page.locator("#concepts .row .value").all_inner_texts()
    parts = [float(value.replace("\u2212", "-").replace(",", "")) for value in rows]
    assert sum(parts) == pytest.approx(item["token_logit"], abs=0.02 * len(parts)), "the bars add up to the logit"

    assert page.locator("#inputs .value").all_inner_texts() == [signed(entry["score"]) for entry in inputs["ranked"]]
    expect(page.locator("#inputs .note b")).to_contain_text("%")
    hits = next(one for one in doc["sources"]["chunks"] if one["chunk"] == chunk_of(doc, place))["hits"]
    assert page.locator("#sources h4").all_inner_texts() == [hit["title"] for hit in hits]
    assert page.locator("#sources .similar b").all_inner_texts() == [f"{hit['similarity']:.2f}" for hit in hits]
    marked = page.locator("#sources mark").all_inner_texts()
    assert len(marked) == sum(bool(hit["overlap"]["text"].strip()) for hit in hits)
    expect(page.locator("#sources .caution")).to_contain_text("Similarity is not influence")
    expect(page.locator("#certificate summary")).to_contain_text("The numbers add up")
    page.locator("#certificate summary").click()
    expect(page.locator("#certificate")).to_contain_text(f"{doc['certificate']['num_deletions']} concepts were deleted")


def chunk_of(doc: dict[str, Any], place: int) -> int:
    return next(int(chunk["chunk"]) for chunk in doc["chunks"] if chunk["start"] <= place < chunk["stop"])


def test_heat_and_window_follow_the_choice(explained: Page, doc: dict[str, Any]) -> None:
    page = explained
    page.locator("#answer-text button.token").nth(3).click()
    heat = page.locator(".token[class*='heat'], .token[class*='cold']").count()
    assert heat == len({(entry["where"], entry["pos"]) for entry in doc["inputs"]["tokens"][3]["ranked"]})
    page.locator("#answer-text .whole").first.click()
    expect(page.locator("#chosen")).to_contain_text("Passage 1")
    chunk = doc["chunks"][0]
    lancets = min(16, chunk["stop"] - chunk["start"])
    expect(page.locator("#window .lancet")).to_have_count(lancets)
    page.locator("#window .lancet").nth(1).click(force=True)
    expect(page.locator("#answer-text [aria-pressed=true]")).to_have_text(shown(doc["tokens"][1]["text"]))


def test_areas_of_a_lancet_are_the_shares(explained: Page) -> None:
    page = explained
    shares = [0.4, 0.3, 0.2, 0.1]
    edges = page.evaluate(f"import('/static/window-shapes.js').then(shapes => shapes.cuts({shares}, 60, 360))")
    width, rise = 60.0, 60 * 3**0.5 / 2

    def breadth(y: float) -> float:
        return width if y >= rise else 2 * ((width**2 - (rise - y) ** 2) ** 0.5 - width / 2)

    slices = [(step + 0.5) / 100 for step in range(36_000)]
    bounds = [0.0, *edges]
    areas = [sum(breadth(y) for y in slices if low <= y < high) for low, high in itertools.pairwise(bounds)]
    assert [area / sum(areas) for area in areas] == pytest.approx(shares, abs=0.004)


# The end of the block of every token, for every length of prompt, against counting the tokens of the row one by one.
BLOCK_ENDS = """async (size) => {
  const { blockEnd } = await import("/static/answer.js");
  const wrong = [];
  for (let prompt = 1; prompt <= 2 * size + 1; prompt++)
    for (let pos = 0; pos < 3 * size; pos++) {
      let end = prompt + pos + 1;
      while (end % size) end += 1;
      if (blockEnd(pos, size, prompt) !== end - prompt) wrong.push([prompt, pos]);
    }
  return wrong;
}"""


@pytest.mark.parametrize("size", [1, 8, 13])
def test_where_blocks_end(explained: Page, size: int) -> None:
    """The panes of the page are those of the open block."""
    assert explained.evaluate(BLOCK_ENDS, size) == []


PART = "\ufffd"


@pytest.mark.parametrize(
    ("tokens", "whole", "wanted"),
    [
        (["K", f" {PART}", PART, "a"], "K ęa", ["K", " ę", "", "a"]),
        ([PART] * 6, "東京", ["東京", "", "", "", "", ""]),
        (["a", PART, PART, "<|endofchunk|>", "b"], "aéb", ["a", "é", "", "<|endofchunk|>", "b"]),
        (["a", PART, "b"], f"a{PART}b", ["a", PART, "b"]),
        (["a", PART, "b"], "another text", ["a", PART, "b"]),
    ],
)
def test_parts_of_a_character(explained: Page, tokens: list[str], whole: str, wanted: list[str]) -> None:
    """A character of several tokens is shown once, by the first; what the text does not tell stays as it is."""
    script = "async ([tokens, whole]) => (await import('/static/readable.js')).readable(tokens, whole)"
    assert explained.evaluate(script, [[{"text": text} for text in tokens], whole]) == wanted


def test_choosing_by_keyboard(explained: Page, doc: dict[str, Any]) -> None:
    page = explained
    choices = page.locator("#answer-text button")
    choices.first.focus()
    page.keyboard.press("Home")
    expect(page.locator("#chosen")).to_contain_text("Passage 1")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#chosen")).to_contain_text(f"token 2 of {len(doc['tokens'])}")
    page.keyboard.press("End")
    expect(page.locator("#chosen")).to_contain_text(f"token {len(doc['tokens'])} of")
    assert page.locator("#answer-text button[tabindex='0']").count() == 1
    assert page.evaluate("document.activeElement.getAttribute('aria-pressed')") == "true"
    page.keyboard.press("Home")
    if len(doc["chunks"]) > 1:
        page.keyboard.press("ArrowDown")
        expect(page.locator("#chosen")).to_contain_text("Passage 2")


MASKED_THEN = "nodes => nodes.flatMap((node, at) => node.classList.contains('masked-then') ? [at] : [])"


def test_replay_shows_each_step(explained: Page, server: Server) -> None:
    page = explained
    commits = post(server, "completions", {**REQUEST, "commits": True})["choices"][0]["vitrail"]["commits"]
    count = len(tokens_of(page))
    page.locator("#answer-text .whole").first.click()
    for step in (0, 5, len(commits)):
        page.locator("#step").fill(str(step))
        lit = {place for commit in commits[:step] for place in commit["positions"] if place < count}
        assert page.locator("#answer-text .token:not(.dark)").count() == len(lit)
        assert f"step {step} of {len(commits)}" in page.locator("#step-text").inner_text()
        lancets = page.locator("#window .lancet")
        unlit = [place for place in range(lancets.count()) if place not in lit]
        assert lancets.evaluate_all(MASKED_THEN) == unlit, "the window follows the replay"
    page.get_by_role("button", name="Replay").click()
    expect(page.locator("#answer-text .dark").first).to_be_visible()
    page.get_by_role("button", name="Pause").click()


def test_steering_side_by_side(open_page: Callable[..., Seen], server: Server) -> None:
    page = open_page().page
    fill(page)
    pick(page, "matrices")
    pick(page, "music")
    page.get_by_role("slider", name="Strength of matrices").fill("1.5")
    page.get_by_role("switch", name="Put music out altogether").check()
    page.get_by_role("button", name="Compare").click()
    page.locator("#compare-legend").wait_for(timeout=60_000)
    ids = list(TOPICS)
    part = {"head": "known", "concept": ids.index("matrices")}
    other = {"head": "known", "concept": ids.index("music")}
    as_set = [{**part, "strength": 1.5}, {**other, "off": True}]
    turned = [{**part, "strength": -1.5}, {**other, "strength": 1.0}]
    for place, steer in enumerate(([], as_set, turned)):
        wanted = post(server, "completions", {**REQUEST, "steer": steer})["choices"][0]["text"]
        column = page.locator(".version").nth(place)
        assert column.locator(".text").evaluate("node => node.textContent") == wanted.lstrip()
        own = {word.lower() for word in column.locator("mark.own").all_inner_texts()}
        assert own <= set(f"{TOPICS['matrices']} {TOPICS['music']}".split())
    assert page.locator(".version").nth(0).locator("ins").count() == 0
    assert page.locator(".version").nth(1).locator("ins").count() > 0
    texts = page.locator(".version .text").all_text_contents()
    again = open_page(page.url.removeprefix(server.url)).page
    again.locator("#compare-legend").wait_for(timeout=60_000)
    assert again.locator(".version .text").all_text_contents() == texts, "the link writes the comparison, too"
    page.locator(".version").nth(1).get_by_role("button", name="Explain this one").click()
    page.locator("body[data-stage=explained]").wait_for(timeout=60_000)
    assert tokens_of(page) == [
        shown(token["text"]) for token in post(server, "explain", {**REQUEST, "steer": as_set})["tokens"]
    ]


def pick(page: Page, words: str) -> None:
    """Add a concept to the steering by keyboard alone."""
    page.locator("#steering").evaluate("node => { node.open = true }")
    box = page.get_by_role("combobox", name="Find a concept")
    box.fill(words)
    first = page.locator("#steer-options [role=option]").first
    expect(first).to_contain_text(words)
    box.press("ArrowDown")
    assert box.get_attribute("aria-activedescendant") == first.get_attribute("id")
    box.press("Enter")
    expect(box).to_have_attribute("aria-expanded", "false")
    expect(page.locator(".steer").last).to_contain_text(words)


def test_a_bar_is_turned_with_one_click(explained: Page) -> None:
    page = explained
    name = page.locator("#concepts .row .name bdi").first.inner_text()
    page.get_by_role("button", name=f"Steer with {name}").click()
    expect(page.locator(".steer")).to_contain_text(name)
    expect(page.locator(".steer output")).to_have_text("+1.0")
    page.get_by_role("button", name=f"Stop steering {name}").click()
    expect(page.locator(".steer")).to_have_count(0)


def test_browsing_concepts(open_page: Callable[..., Seen]) -> None:
    page = open_page("/#concepts").page
    expect(page.locator("#found")).to_have_text(f"{len(TOPICS) + NUM_DISCOVERED} concepts")
    page.get_by_role("radio", name="known", exact=True).check()
    expect(page.locator("#found")).to_have_text(f"{len(TOPICS)} concepts")
    page.get_by_label("Search concepts").fill("organ choir")
    expect(page.locator(".tile").first).to_contain_text("music")
    page.locator(".tile").first.click()
    expect(page).to_have_url(f"{page.url.split('#')[0]}#concept/known/{list(TOPICS).index('music')}")
    expect(page.locator("#concept-detail h1")).to_have_text("music")
    expect(page.locator("#concept-detail")).to_contain_text("×9.0")
    assert page.locator(".examples mark").count() >= 1
    page.locator(".near a").first.click()
    expect(page.locator("#concept-detail h1")).not_to_have_text("music")
    name = page.locator("#concept-detail h1").inner_text()
    page.get_by_role("button", name="Steer with this").click()
    expect(page.locator(".steer")).to_contain_text(name)
    page.go_back()
    expect(page.locator("#concept-detail h1")).to_have_text(name)


def test_a_concept_that_is_not_there(open_page: Callable[..., Seen]) -> None:
    seen = open_page("/")
    seen.are_refusals_expected = True
    seen.page.goto(seen.page.url + "#concept/known/999")
    expect(seen.page.locator("#concept-detail [role=alert]")).to_contain_text("999")


def test_saving(explained: Page, doc: dict[str, Any], browser: Browser, tmp_path: Path) -> None:
    page = explained
    with page.expect_download() as download:
        page.get_by_role("button", name="Save JSON").click()
    download.value.save_as(tmp_path / "answer.json")
    saved = json.loads((tmp_path / "answer.json").read_text())
    assert {**saved["request"], "steer": None} == {**REQUEST, "steer": None}
    assert saved["explanation"]["text"] == doc["text"]
    assert saved["answer"]["text"] in doc["text"]
    with page.expect_download() as download:
        page.get_by_role("button", name="Save page").click()
    download.value.save_as(tmp_path / "answer.html")
    alone = browser.new_page()
    alone.goto((tmp_path / "answer.html").as_uri())
    assert alone.locator("script").count() == 0
    pane = alone.locator("svg.window .lancet .pane").first
    assert pane.evaluate("node => getComputedStyle(node).fill") not in ("none", "rgb(0, 0, 0)"), (
        "the window has its glass"
    )
    text = alone.locator("body").inner_text()
    largest = doc["concepts"]["chunks"][0]["ranked"][0]
    assert PROMPT in text
    assert largest["name"] in text
    assert signed(largest["centred"]) in text
    assert doc["sources"]["chunks"][0]["hits"][0]["title"] in text
    alone.close()


def test_a_link_repeats_the_answer(open_page: Callable[..., Seen], server: Server) -> None:
    first = open_page().page
    fill(first)
    pick(first, "glass")
    write(first)
    first.locator("#answer-text button.token").nth(4).click()
    second = open_page(first.url.removeprefix(server.url)).page
    second.locator("body[data-stage=explained]").wait_for(timeout=60_000)
    assert tokens_of(second) == tokens_of(first)
    assert second.locator("#chosen").inner_text() == first.locator("#chosen").inner_text()
    expect(second.locator(".steer")).to_contain_text("glass")
    assert second.url == first.url


def test_back_writes_the_answer_before(open_page: Callable[..., Seen]) -> None:
    page = open_page().page
    write(page, tokens=9)
    before = tokens_of(page)
    fill(page, tokens=9, seed=SEED + 1)
    page.get_by_role("button", name="Write", exact=True).click()
    expect(page.locator("#status")).to_contain_text(f"seed {SEED + 1}", timeout=60_000)
    assert tokens_of(page) != before
    page.go_back()
    expect(page.locator("#status")).to_contain_text(f"seed {SEED}", timeout=60_000)
    assert tokens_of(page) == before


def test_a_link_with_every_letter(open_page: Callable[..., Seen], server: Server) -> None:
    """base64 of UTF-8, URL-safe: letters outside Latin-1 and prompts of every length survive."""
    page = open_page().page
    prompt = 'Über 東京 🪟 "q" & <b> ?~'
    write(page, prompt=prompt, tokens=4)
    again = open_page(page.url.removeprefix(server.url)).page
    again.locator("body[data-stage=explained]").wait_for(timeout=60_000)
    assert again.locator("#ask-prompt").input_value() == prompt


def test_a_link_that_cannot_be_read(open_page: Callable[..., Seen]) -> None:
    page = open_page("/#ask=%%%").page
    for link in ("#ask=%%%", "#ask=e30", "#ask=bm90IGpzb24", "#nothing", "#ask=eyJ2IjogOTl9"):
        page.evaluate("link => { location.hash = link }", link)
        expect(page.locator("#link-problem [role=alert]")).to_contain_text("write a prompt below")
        page.get_by_role("link", name="Dismiss").click()
        expect(page.locator("#link-problem")).to_be_empty()


def test_a_prompt_that_is_too_long(open_page: Callable[..., Seen]) -> None:
    """The server's line, how to mend it, and the answer before stays."""
    seen = open_page()
    seen.are_refusals_expected = True
    write(seen.page)
    before = tokens_of(seen.page)
    fill(seen.page, prompt="the river " * 200)
    seen.page.get_by_role("button", name="Write", exact=True).click()
    alert = seen.page.locator("#problem [role=alert]")
    expect(alert).to_contain_text("Shorten the prompt or ask for fewer tokens")
    assert tokens_of(seen.page) == before


def test_a_form_that_makes_no_sense(open_page: Callable[..., Seen]) -> None:
    page = open_page().page
    page.locator("#ask-prompt").fill(PROMPT)
    page.locator("#sampling").evaluate("node => { node.open = true }")
    page.locator("#ask-top_p").fill("3")
    page.get_by_role("button", name="Write", exact=True).click()
    assert page.locator("#ask-top_p:focus").count() == 1
    expect(page.locator("body")).to_have_attribute("data-stage", "empty")


def test_the_server_dies_while_it_writes(open_page: Callable[..., Seen], server: Server) -> None:
    # Long, so that it is still being written when the kill arrives.
    doc = post(server, "explain", REQUEST | {"max_tokens": 110})
    seen = open_page(is_calm=False)
    seen.are_refusals_expected = True
    seen.page.expose_function("atThird", lambda: server.stop(signal.SIGKILL) if server.process else None)
    fill(seen.page, tokens=110)
    seen.page.get_by_role("button", name="Write", exact=True).click()
    try:
        alert = seen.page.locator("#problem [role=alert]")
        expect(alert).to_contain_text("The connection broke", timeout=20_000)
        assert seen.page.locator("#answer-text .token:not(.masked)").count() >= 3, "what arrived is kept"
        seen.page.locator("#problem").get_by_role("button", name="Retry").click()
        expect(alert).to_contain_text("The server does not answer")
        assert seen.page.locator("#answer-text .token:not(.masked)").count() >= 3
    finally:
        server.start()
    seen.page.locator("#problem").get_by_role("button", name="Retry").click()
    seen.page.locator("body[data-stage=explained]").wait_for(timeout=60_000)
    assert tokens_of(seen.page) == [shown(token["text"]) for token in doc["tokens"]]


def test_an_overloaded_server(open_page: Callable[..., Seen]) -> None:
    seen = open_page()
    seen.are_refusals_expected = True
    error = {"message": "256 requests are waiting", "type": "overloaded_error", "param": None, "code": None}
    body = json.dumps({"error": error})
    seen.page.route(
        "**/v1/completions",
        lambda route: route.fulfill(
            status=429, body=body, headers={"retry-after": "3"}, content_type="application/json"
        ),
        times=1,
    )
    fill(seen.page)
    seen.page.get_by_role("button", name="Write", exact=True).click()
    expect(seen.page.locator("#problem [role=alert]")).to_contain_text("try again in 3 s")
    seen.page.locator("#problem").get_by_role("button", name="Retry").click()
    seen.page.locator("body[data-stage=explained]").wait_for(timeout=60_000)


def test_an_answer_that_the_server_forgot(open_page: Callable[..., Seen], doc: dict[str, Any]) -> None:
    """The server says completion_gone; the page repeats the request by its seed."""
    seen = open_page()
    seen.are_refusals_expected = True
    forget = json.dumps({"completion": "cmpl-forgotten", "index": 0})
    seen.page.route("**/v1/explain", lambda route: route.continue_(post_data=forget), times=1)
    write(seen.page)
    assert tokens_of(seen.page) == [shown(token["text"]) for token in doc["tokens"]]


def test_stopping_keeps_what_is_written(open_page: Callable[..., Seen]) -> None:
    seen = open_page(is_calm=False)
    seen.page.evaluate("window.atThird = () => document.getElementById('stop').click()")
    fill(seen.page, tokens=100)
    seen.page.get_by_role("button", name="Write", exact=True).click()
    expect(seen.page.locator("#status")).to_contain_text("Stopped")
    assert seen.page.locator("#answer-text .token:not(.masked)").count() >= 3
    expect(seen.page.locator("#stop")).to_be_hidden()


def test_a_new_request_silences_the_old(open_page: Callable[..., Seen], doc: dict[str, Any]) -> None:
    """Asking again while an answer is explained: no word of the old explanation, and the new one can be stopped."""
    seen = open_page()
    held: list[Route] = []
    seen.page.route("**/v1/explain", lambda route: held.append(route), times=1)
    fill(seen.page, tokens=9, seed=SEED + 1)
    seen.page.get_by_role("button", name="Write", exact=True).click()
    expect(seen.page.locator("#status")).to_contain_text("Explaining", timeout=60_000)
    write(seen.page)
    expect(seen.page.locator("#problem")).to_be_empty()
    expect(seen.page.locator("#stop")).to_be_hidden()
    assert len(held) == 1
    assert tokens_of(seen.page) == [shown(token["text"]) for token in doc["tokens"]]


def test_nothing_overflows_sideways(open_page: Callable[..., Seen]) -> None:
    page = open_page(viewport={"width": 360, "height": 740}).page
    write(page, prompt="an-unbroken-word-" * 6)
    pick(page, "matrices")
    page.get_by_role("button", name="Compare").click()
    page.locator("#compare-legend").wait_for(timeout=60_000)
    for width, scheme in itertools.product((360, 768, 1280, 1920), SCHEMES):
        page.set_viewport_size({"width": width, "height": 740})
        page.emulate_media(color_scheme=scheme)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.set_viewport_size({"width": 360, "height": 740})
    for place in ("#concepts", "#concept/known/3", "#concept/discovered/5"):
        page.evaluate("hash => { location.hash = hash }", place)
        page.locator("#concept-detail h1, .tile").first.wait_for(state="attached")
        page.wait_for_load_state("networkidle")
        assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_accessible(browser: Browser, server: Server) -> None:
    """axe finds nothing by day and by night, on both views, before and after an answer."""
    context = browser.new_context(bypass_csp=True, reduced_motion="reduce")
    page = context.new_page()

    def clean(where: str) -> None:
        page.evaluate(AXE)
        for scheme in SCHEMES:
            page.emulate_media(color_scheme=scheme)
            assert page.evaluate(VIOLATIONS) == [], f"{where}, {scheme}"

    page.goto(server.url)
    page.locator("body[data-ready]").wait_for()
    clean("before the answer")
    write(page)
    pick(page, "matrices")
    page.get_by_role("button", name="Compare").click()
    page.locator("#compare-legend").wait_for(timeout=60_000)
    page.locator("#certificate summary").click()
    page.get_by_role("combobox", name="Find a concept").fill("m")
    page.locator("#steer-options [role=option]").first.wait_for()
    clean("after the answer")
    page.goto(f"{server.url}#concepts")
    page.locator(".tile").first.wait_for()
    clean("concepts")
    page.goto(f"{server.url}#concept/known/3")
    page.locator("#concept-detail h1").wait_for()
    clean("one concept")
    page.goto(f"{server.url}#ask=broken")
    page.locator("#link-problem [role=alert]").wait_for()
    clean("a broken link")
    context.close()


def test_hostile_text_is_only_text(open_page: Callable[..., Seen], browser: Browser, tmp_path: Path) -> None:
    """Whatever the user types, and whatever model, library and corpus hold, nothing of it runs."""
    seen = open_page()

    def poison(route: Route) -> None:
        answer = route.fetch()
        route.fulfill(response=answer, body=json.dumps(poisoned(answer.json())))

    seen.page.route("**/v1/explain", poison)
    seen.page.route("**/v1/concepts/**", poison)
    write(seen.page, prompt=f"{HOSTILE} the river", tokens=12)
    seen.page.locator("#answer-text button.token").first.click()
    assert "onerror" in seen.page.locator("#sources").inner_text()
    with seen.page.expect_download() as download:
        seen.page.get_by_role("button", name="Save page").click()
    seen.page.goto(seen.page.url.split("#")[0] + "#concept/known/2")
    expect(seen.page.locator("#concept-detail h1")).to_contain_text("onerror")
    assert seen.page.evaluate("window.pwned") is None
    assert seen.page.locator("main img, main script").count() == 0
    download.value.save_as(tmp_path / "answer.html")
    alone = browser.new_page()
    alone.goto((tmp_path / "answer.html").as_uri())
    assert alone.evaluate("window.pwned") is None
    assert alone.locator("img, script").count() == 0
    alone.close()


def poisoned(part: Any) -> Any:
    """The same answer with hostile names, titles and texts."""
    if isinstance(part, list):
        return [poisoned(one) for one in part]
    if not isinstance(part, dict):
        return part
    hostile = {"name", "title", "source", "license", "text", "description", "document_id"}
    return {
        key: HOSTILE if key in hostile and isinstance(value, str) else poisoned(value) for key, value in part.items()
    }


def test_day_and_night_are_kept(open_page: Callable[..., Seen]) -> None:
    page = open_page(color_scheme="light").page
    paper = "getComputedStyle(document.documentElement).backgroundColor"
    day = page.evaluate(paper)
    toggle = page.locator("#theme")
    toggle.click()
    toggle.click()
    assert page.evaluate(paper) != day
    page.reload()
    page.locator("body[data-ready]").wait_for()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert page.evaluate(paper) != day


def test_policy_of_the_page(server: Server) -> None:
    answer = httpx.get(server.url)
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "style=" not in answer.text, "styles are classes or set by script"
    assert "http://" not in answer.text.replace("http://www.w3.org/2000/svg", "")
