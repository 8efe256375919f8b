"""A real browser for the tests of the page: the system's Chromium, driven by Playwright."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), ""
)
MISSING = "no chromium on this machine: the page is not tried in a browser (make setup installs it where it may)"


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    """The browser, until the block ends. It has no sandbox of its own: it may run as root, and opens our files only."""
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


class Watched:
    """A page of a browser, with all that went wrong on it and all that it asked of the network."""

    def __init__(self, opened: Browser, file: Path, fragment: str = "", **options: Any) -> None:
        context = opened.new_context(viewport={"width": 1400, "height": 1000}, **options)
        self.page: Page = context.new_page()
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.errors.append(message.text))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(file.resolve().as_uri() + fragment)

    def close(self) -> None:
        """Close the page; nothing may have gone wrong on it, and it may have asked for its own file only."""
        self.page.context.close()
        assert self.errors == []
        assert len([url for url in self.requests if url != "about:srcdoc"]) == 1, self.requests

    def step(self) -> int:
        """The number of the current step, from 1."""
        return int(self.page.inner_text("#counter").split()[1])

    def steps(self) -> int:
        """How many steps there are."""
        return int(self.page.inner_text("#counter").split()[3])
