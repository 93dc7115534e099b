"""How long the migration report's page takes in a headless Chromium: python -m bench.migrate_page [--services 10000]."""

from __future__ import annotations

import argparse
import statistics
import sys
import time

from proxy.migrate import output_html
from tests import browser, migrate_reports

SEARCHES = ("web", "10.0.23", "kube-system api 9", "nowhere", "")
ROUNDS = 5

PAINT = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
AT_REST = "new Promise(done => requestIdleCallback(() => setTimeout(done, 0)))"
SEARCH = """
(() => {{
  const search = document.getElementById("search");
  search.value = {words!r};
  const start = performance.now();
  search.dispatchEvent(new Event("input", {{bubbles: true}}));
  document.body.offsetHeight;
  return performance.now() - start;
}})()
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--services", type=int, default=10_000)
    options = parser.parse_args()
    program = browser.find()
    if program is None:
        print(f"no Chromium is installed ({', '.join(browser.NAMES)})", file=sys.stderr)
        return 1
    report = migrate_reports.report(options.services)
    start = time.perf_counter()
    page = output_html.render(report)
    print(f"made:     {time.perf_counter() - start:.2f} s, {len(page.encode()) / 1e6:.1f} MB")
    chromium = browser.Browser(program)
    paints, searches = [], []
    for _ in range(ROUNDS):
        chromium.open(page)
        chromium.ask(AT_REST)
        paints.append(chromium.ask(PAINT))
        searches += [chromium.ask(SEARCH.format(words=words)) for words in SEARCHES]
    chromium.close()
    print(f"painted:  {statistics.median(paints):.0f} ms (worst of {len(paints)}: {max(paints):.0f} ms)")
    print(f"filtered: {statistics.median(searches):.0f} ms (worst of {len(searches)}: {max(searches):.0f} ms)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
