"""Opens a page in Chromium, offline, and says what it saw, as JSON. Runs under a Python that has
playwright (scripts/browser): browse.py PAGE FOLDER CHROMIUM"""

from __future__ import annotations

import json
import os
import sys

from playwright.sync_api import sync_playwright

CONTRAST = """() => {
  const parse = (text) => { const m = text.match(/[\\d.]+/g).map(Number); return [m[0], m[1], m[2], m[3] ?? 1]; };
  const light = ([r, g, b]) => { const f = (v) => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; };
    return 0.2126 * f(r) + 0.7152 * f(g) + 0.0722 * f(b); };
  const ground = (e) => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor);
    if (c[3] > 0.99) return c; } return [255, 255, 255, 1]; };
  const boxes = (e) => [...(e.closest("svg")?.querySelectorAll("rect") ?? [])].filter((r) => {
    const a = r.getBoundingClientRect(), b = e.getBoundingClientRect();
    return a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom; });
  const bad = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walk.nextNode(); node; node = walk.nextNode()) {
    const e = node.parentElement, style = getComputedStyle(e);
    if (!node.textContent.trim() || ["SCRIPT", "STYLE", "title"].includes(e.tagName) || !e.checkVisibility()) continue;
    const drawn = e.closest("svg") !== null;
    const ink = parse(drawn ? style.fill : style.color);
    const grounds = [ground(drawn ? e.closest("svg").parentElement : e)];
    if (drawn) grounds.push(...boxes(e).map((r) => parse(getComputedStyle(r).fill)));
    for (const under of drawn && grounds.length > 1 ? grounds.slice(1) : grounds) {
      const [a, b] = [light(ink), light(under)], ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
      if (ratio < 4.5) bad.push([node.textContent.trim().slice(0, 40), Number(ratio.toFixed(2))]);
    }
  }
  return bad;
}"""
FACTS = """() => ({
  title: document.title,
  wide: document.documentElement.scrollWidth - document.documentElement.clientWidth,
  canvases: document.querySelectorAll("canvas").length,
  figures: document.querySelectorAll("figure.chart").length,
  lines: [...document.querySelectorAll("figure.chart svg.lines")].filter((e) => e.checkVisibility()).length,
  scripts: document.scripts.length,
  text: document.body.innerText,
  height: document.documentElement.scrollHeight,
  hostile: window.hostile ?? null,
})"""


def main(page_path: str, folder: str, chromium: str) -> None:
    seen = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for width, scheme, script in (
            (1600, "light", True), (1600, "dark", True), (400, "light", True), (400, "dark", True),
            (1000, "light", False),
        ):  # fmt: skip
            context = browser.new_context(
                viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True,
                java_script_enabled=True, bypass_csp=False,
            )  # fmt: skip
            page = context.new_page()
            errors: list[str] = []
            requests: list[str] = []
            page.on("console", lambda message, errors=errors: errors.append(message.text))
            page.on("pageerror", lambda error, errors=errors: errors.append(str(error)))
            page.on("request", lambda request, requests=requests: requests.append(request.url))
            if not script:
                page.emulate_media(media="print")
            page.goto(f"file://{os.path.abspath(page_path)}")
            page.wait_for_load_state("load")
            name = f"{width}-{scheme}{'' if script else '-print'}"
            page.screenshot(path=os.path.join(folder, f"{name}.png"), full_page=True)
            seen.append({"width": width, "scheme": scheme, "print": not script, "errors": errors,
                         "requests": requests, "contrast": page.evaluate(CONTRAST),
                         **page.evaluate(FACTS)})  # fmt: skip
            context.close()
        context = browser.new_context(
            viewport={"width": 1000, "height": 900}, java_script_enabled=False, offline=True
        )
        page = context.new_page()
        page.goto(f"file://{os.path.abspath(page_path)}")
        page.screenshot(path=os.path.join(folder, "1000-no-script.png"), full_page=True)
        lines = page.locator("figure.chart svg.lines")
        visible = sum(lines.nth(at).is_visible() for at in range(lines.count()))
        seen.append({"no_script": True, "text": page.inner_text("body"), "lines": visible})
        browser.close()
    print(json.dumps(seen))


if __name__ == "__main__":
    main(*sys.argv[1:])
