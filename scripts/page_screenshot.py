"""A picture of the served page for the README: an answer, and what its clearest word is made of.

    python scripts/page_screenshot.py runs/demo docs/images/page.png

Starts `vitrail serve` on a finished demo. The word shown is the one with the largest contribution of known
concepts. Needs the `dev` extra and a Chromium: Playwright's own, or one named by `--browser`.
"""

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

OFFLINE = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
WIDTH, HEIGHT = 1440, 1010


@contextmanager
def served(demo: Path) -> Iterator[str]:
    """Serve a demo's model.

    Args:
        demo: directory of a finished demo.

    Yields:
        the address.
    """
    command = [sys.executable, "-c", "from vitrail.cli.main import main; main()", "serve", str(demo / "model")]
    command += ["--index", str(demo / "index"), "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        text = ""
        while not text.rstrip().endswith("}"):
            text += process.stdout.readline()
        yield str(json.loads(text)["url"])
        process.terminate()


def take(page: Page, url: str, prompt: str, seed: int, picture: Path) -> None:
    """Ask, choose a word, and save what a reader sees.

    Args:
        page: of a browser.
        url: of the server.
        prompt: what to ask.
        seed: of the sampling.
        picture: the PNG to write.
    """
    answers: list[dict[str, Any]] = []
    page.on("response", lambda response: answers.append(response.json()) if "/v1/explain" in response.url else None)
    page.goto(url)
    page.locator("body[data-ready]").wait_for()
    page.locator("#ask-prompt").fill(prompt)
    page.locator("#sampling").evaluate("node => { node.open = true }")
    page.locator("#ask-seed").fill(str(seed))
    page.locator("#sampling").evaluate("node => { node.open = false }")
    page.get_by_role("button", name="Write", exact=True).click()
    page.locator("body[data-stage=explained]").wait_for(timeout=120_000)
    best = clearest(answers[-1])
    page.locator("#answer-text button.token").nth(best).click()
    page.evaluate("window.scrollTo(0, 0)")
    picture.parent.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=picture)


def clearest(why: dict[str, Any]) -> int:
    """The word that known concepts speak for most.

    Args:
        why: an explanation.

    Returns:
        its position in the answer.
    """
    words = {token["pos"] for token in why["tokens"] if sum(char.isalpha() for char in token["text"]) > 2}
    scores = {token["pos"]: token["known_centred"] for token in why["concepts"]["tokens"] if token["pos"] in words}
    return int(max(scores, key=lambda pos: scores[pos]))


def main() -> None:
    """Read the arguments and take the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("demo", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--prompt", default="Agriculture accounts for about half of the exports and")
    parser.add_argument("--seed", type=int, default=12)
    parser.add_argument("--scheme", choices=("light", "dark"), default="light")
    parser.add_argument("--browser", default=shutil.which("chromium"), help="path of a Chromium")
    given = parser.parse_args()
    with served(given.demo) as url, sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=given.browser, args=OFFLINE)
        context = chromium.new_context(
            viewport={"width": WIDTH, "height": HEIGHT}, color_scheme=given.scheme, reduced_motion="reduce"
        )
        take(context.new_page(), url, given.prompt, given.seed, given.picture)
        chromium.close()


if __name__ == "__main__":
    main()
