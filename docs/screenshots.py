"""Takes the screenshots of README.md and docs/ from the real report in headless Chromium (`make screenshots`).

Images are reduced to a palette, so that all of them together stay below half a megabyte.
"""

from __future__ import annotations

import io
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

from staleness_audit import audit
from staleness_audit.report.html import write_report

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
COLOURS = 64
LIMIT = 500_000


@dataclass(frozen=True)
class Shot:
    """One image: of which run, in which window, from where on the page (an anchor)."""

    name: str
    run: str
    bound: int | None
    width: int
    height: int
    theme: str = "light"
    anchor: str = ""
    scale: float = 1


SHOTS = (
    Shot("report-light", "slime/fully_async_killed_in_training", 3, 1120, 1560),
    Shot("report-timeline-dark", "slime/fully_async_killed_in_training", 3, 1120, 760, "dark", "timeline-figure"),
    Shot("report-story", "slime/fully_async_killed_in_training", 3, 1120, 760, "light", "violations"),
    Shot("report-waste", "areal/spmd_reject_fail_eval_resume", None, 1120, 760, "light", "waste-flow"),
    Shot("report-phone", "prime-rl/queue_unenforced_bound1", None, 390, 844, "light", "", 2),
)


@contextmanager
def opened(browser: Browser, file: Path, shot: Shot) -> Iterator[Page]:
    """Yield the report as a reader with that window and theme sees it."""
    context = browser.new_context(
        viewport={"width": shot.width, "height": shot.height},
        color_scheme="dark" if shot.theme == "dark" else "light",
        reduced_motion="reduce",
        device_scale_factor=shot.scale,
        is_mobile=shot.width < 500,
    )
    page = context.new_page()
    page.goto(file.as_uri() + (f"#{shot.anchor}" if shot.anchor else ""))
    inside = "plot.getBoundingClientRect().top < innerHeight && plot.getBoundingClientRect().bottom > 0"
    page.wait_for_function(
        f"() => [...document.querySelectorAll('.plot')].every(plot => !({inside}) || plot.dataset.drawn)"
    )
    page.wait_for_timeout(300)
    yield page
    context.close()


def main() -> None:
    """Write all images; exit with 1 if Chromium is missing or they grew too big."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("Chromium is not installed; on Debian: apt-get install chromium")
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for shot in SHOTS:
            file = Path(folder) / "report.html"
            run = ROOT / "sample_traces" / shot.run / "run"
            write_report(audit(run, shot.bound, tables=Path(folder) / shot.run, worst=20), file)
            # No path of the machine that takes the picture.
            file.write_text(file.read_text(encoding="utf-8").replace(f"{ROOT}/", ""), encoding="utf-8")
            with opened(browser, file, shot) as page:
                picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
            target = IMAGES / f"{shot.name}.png"
            picture.quantize(COLOURS, dither=Image.Dither.NONE).save(target, optimize=True)
            print(f"{target.relative_to(ROOT)}: {target.stat().st_size:,} bytes")
        browser.close()
    total = sum(path.stat().st_size for path in IMAGES.glob("*.png"))
    if total > LIMIT:
        sys.exit(f"The images have {total:,} bytes in all; {LIMIT:,} are allowed.")


if __name__ == "__main__":
    main()
