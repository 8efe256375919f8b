"""Takes the pictures of the README: the acts of a report's page, and a copy that is left. Usage: ``make shots``."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

import views
import why_copied
from playwright.sync_api import Page, sync_playwright

import reink

ROOT = Path(__file__).resolve().parent.parent
PICTURES = ROOT / "docs" / "pictures"
MARGIN = 12


def main() -> int:
    """Write each picture; 1 where there is no browser."""
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        print("no chromium on this machine", file=sys.stderr)
        return 1
    PICTURES.mkdir(exist_ok=True)
    running = reink.explain(*views.program(), codegen="eager")
    copied = reink.explain(*why_copied.program(), passes=(why_copied.drop_clones,), codegen="eager")
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1304, "height": 900}, reduced_motion="reduce")
        for name, report, fragment in (
            ("functionalize", running, "#step-5"),
            ("reinplace", running, "#decision-1"),
            ("why_copied", copied, "#decision-0"),
            ("run", running, "#step-13"),
        ):
            _take(page, report, Path(folder) / f"{name}.html", fragment, PICTURES / f"{name}.png")
        browser.close()
    return 0


def _take(page: Page, report: reink.Report, file: Path, fragment: str, picture: Path) -> None:
    """The story of `report` at `fragment`, as a picture."""
    report.save_html(file)
    page.goto(file.as_uri() + fragment)
    box = page.locator("#story").bounding_box()
    assert box is not None
    page.screenshot(
        path=picture,
        full_page=True,
        clip={
            "x": box["x"] - MARGIN,
            "y": box["y"] + page.evaluate("scrollY") - MARGIN,
            "width": box["width"] + 2 * MARGIN,
            "height": box["height"] + 2 * MARGIN,
        },
    )
    print(f"{picture.relative_to(ROOT)}: {picture.stat().st_size} bytes")


if __name__ == "__main__":
    sys.exit(main())
