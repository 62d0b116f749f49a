"""Opens a page in Chromium, offline, and prints what it saw, as JSON. Runs under a Python that has
playwright (tests/support/browser.py): browse.py PAGE FOLDER CHROMIUM"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, sync_playwright

LOOKS = Path(__file__).with_name("browse.js").read_text(encoding="utf-8")
VIEWS = ((1600, "light"), (1600, "dark"), (400, "light"), (400, "dark"))


def main(address: str, folder: Path, chromium: str) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        seen = [_view(browser, address, folder, width, scheme) for width, scheme in VIEWS]
        seen.append(_view(browser, address, folder, 1000, "light", media="print"))
        seen.append(_view(browser, address, folder, 1000, "light", script=False))
        browser.close()
    print(json.dumps(seen))


def _view(
    browser: Browser,
    address: str,
    folder: Path,
    width: int,
    scheme: Any,
    media: Any = "screen",
    script: bool = True,
) -> dict[str, Any]:
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True,
        java_script_enabled=script,
    )  # fmt: skip
    page = context.new_page()
    errors: list[str] = []
    requests: list[str] = []
    page.on("console", lambda message: errors.append(message.text))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.emulate_media(media=media)
    page.goto(address)
    how = f"{width}-{scheme}" if media == "screen" and script else media if script else "no-script"
    page.screenshot(path=str(folder / f"{how}.png"), full_page=True)
    lines = page.locator("figure.chart svg.lines")
    drawn = sum(lines.nth(at).is_visible() for at in range(lines.count()))
    facts = {"how": how, "errors": errors, "requests": requests, "svg_charts": drawn,
             "charts": page.locator("figure.chart").count(), "text": page.inner_text("body"),
             "canvases": page.locator("canvas").count()}  # fmt: skip
    if script:
        facts |= page.evaluate(LOOKS)
    context.close()
    return facts


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve().as_uri(), Path(sys.argv[2]), sys.argv[3])
