"""A picture of a demo's report for the README: its first screens, 1280 pixels wide.

    python scripts/screenshot.py runs/demo/report.html docs/images/report.png

Needs the `dev` extra and a Chromium: Playwright's own, or one named by `--browser`.
"""

import argparse
import shutil
from pathlib import Path

from playwright.sync_api import sync_playwright

WIDTH = 1280
OFFLINE = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]


def screenshot(report: Path, picture: Path, height: int, scheme: str, browser: str | None) -> None:
    """Render a report and save its first screens.

    Args:
        report: the HTML file.
        picture: the PNG to write.
        height: how much of the page to show, pixels.
        scheme: `light` or `dark`.
        browser: path of a Chromium, or None for the one Playwright installed.
    """
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser, args=OFFLINE)
        page = chromium.new_page(
            viewport={"width": WIDTH, "height": height},
            color_scheme="dark" if scheme == "dark" else "light",
            reduced_motion="reduce",
        )
        page.goto(report.resolve().as_uri())
        picture.parent.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=picture, clip={"x": 0, "y": 0, "width": WIDTH, "height": height})
        chromium.close()


def main() -> None:
    """Read the arguments and take the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--height", type=int, default=2050, help="pixels of the page to show")
    parser.add_argument("--scheme", choices=("light", "dark"), default="light")
    parser.add_argument("--browser", default=shutil.which("chromium"), help="path of a Chromium")
    given = parser.parse_args()
    screenshot(given.report, given.picture, given.height, given.scheme, given.browser)


if __name__ == "__main__":
    main()
