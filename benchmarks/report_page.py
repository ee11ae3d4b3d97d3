"""How long a report page takes to open in a real browser, and pictures of it.

    python benchmarks/report_page.py RUN-PAGE.html TRACE-PAGE.html --repeats 5 --out benchmarks/results/report-page.json
    python benchmarks/report_page.py PAGE.html --pictures docs

Each time in a fresh browser process (headless Chromium by its driver, no GPU, nothing cached), at 1440 × 900. All times
from the start of the navigation, as the browser's own clock has it. `painted`: first contentful paint. `open`: verdict,
findings, breakdown and timeline are there and work; plotly's charts are drawn when they come into view. `all_charts`:
every chart is drawn, as if one had scrolled to the end at once.

Pictures: at 1440 and 390 pixels, light and dark, in 128 colours.
"""

import argparse
import json
import os
import shutil
import statistics
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "report"))

from browser import WHY_NOT, Browser  # noqa: E402

TIMES = """
const at = (name) => performance.getEntriesByName(name)[0]?.startTime ?? null;
return {painted: at("first-contentful-paint"), open: at("hotlap-ready"), all_charts: window.drawn};
"""
SCREENS = [(1440, 900, False), (1440, 900, True), (390, 844, False), (390, 844, True)]
TALLEST = {1440: 2600, 390: 2400}
"""Pixels of a picture from the top."""


def opened(page: Path) -> dict[str, float]:
    """Milliseconds in a fresh browser."""
    browser = Browser()
    try:
        browser.look(1440, 900)
        browser.open(page)
        command = "hotlap.all().then(() => { window.drawn = performance.now(); })"
        browser.tell("Runtime.evaluate", expression=command, awaitPromise=True)
        found = browser.run(TIMES)
        found["version"] = browser.run("return navigator.userAgent.match(/Chrome\\/[\\d.]+/)[0]")
        return dict(found)
    finally:
        browser.close()


def measured(page: Path, repeats: int) -> dict[str, Any]:
    """Median and spread of each time, ms."""
    runs = [opened(page) for _ in range(repeats)]
    found: dict[str, Any] = {"bytes": page.stat().st_size, "browser": runs[0]["version"], "runs": repeats}
    for name in ("painted", "open", "all_charts"):
        values = [run[name] for run in runs if run[name] is not None]
        spread = {"median": statistics.median(values), "min": min(values), "max": max(values)}
        found[f"{name}_ms"] = {key: round(value, 1) for key, value in spread.items()}
    return found


def pictures(page: Path, folder: Path) -> None:
    """PNGs of the page's top, as small as they can be read."""
    browser = Browser()
    try:
        for width, height, dark in SCREENS:
            browser.look(width, height, dark)
            browser.open(page)
            browser.draw_all()
            target = folder / f"report-{page.stem}-{width}-{'dark' if dark else 'light'}.png"
            target.write_bytes(browser.picture(TALLEST[width]))
            if quantize := shutil.which("pngquant"):
                os.spawnv(os.P_WAIT, quantize, [quantize, "--force", "--output", str(target), "128", str(target)])
            print(f"{target}  {target.stat().st_size / 1024:.0f} KiB")
    finally:
        browser.close()


def main() -> None:
    """Measure, or take pictures."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("pages", nargs="+", type=Path)
    asked.add_argument("--repeats", type=int, default=5)
    asked.add_argument("--pictures", type=Path)
    asked.add_argument("--out", type=Path)
    options = asked.parse_args()
    if WHY_NOT:
        sys.exit(WHY_NOT)
    if options.pictures:
        for page in options.pages:
            pictures(page, options.pictures)
        return
    result: dict[str, Any] = {
        "command": " ".join(["python", "benchmarks/report_page.py", *sys.argv[1:]]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cores": os.cpu_count(),
        "load_before": os.getloadavg(),
        "pages": {page.stem: measured(page, options.repeats) for page in options.pages},
        "load_after": os.getloadavg(),
    }
    text = json.dumps(result, indent=1)
    if options.out:
        options.out.write_text(text + "\n", "utf-8")
    print(text)


if __name__ == "__main__":
    main()
