"""Runs every Python block of the pages, and renews the output that is shown below a block.

A ```` ```text ```` block that follows a ```` ```python ```` block is what that block prints. Usage:
``python docs/build.py``; the exit status is 1 when a block raises.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
import traceback
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any

README = Path(__file__).resolve().parent.parent / "README.md"
PAGES = (README, *(README.parent / "docs" / name for name in ("functionalization.md", "reinplacing.md", "export.md")))

_BLOCK = re.compile(r"^```python\n(?P<code>.*?)^```\n(?:\n*^```text\n(?P<output>.*?)^```\n)?", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^## (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Block:
    """A Python block of a page.

    `name` is its section and its place there, ``as-a-library-1``; `line` the line of its first statement,
    counted from 1; `output` the text shown below it, or None, which stands at `span` of the page.
    """

    name: str
    line: int
    code: str
    output: str | None
    span: tuple[int, int]


def blocks(page: str) -> list[Block]:
    """The Python blocks of a Markdown page, in order."""
    found: list[Block] = []
    counts: dict[str, int] = {}
    for match in _BLOCK.finditer(page):
        headings = _HEADING.findall(page, 0, match.start())
        section = re.sub(r"[^a-z0-9]+", "-", headings[-1].lower()).strip("-") if headings else "top"
        counts[section] = counts.get(section, 0) + 1
        found.append(
            Block(
                name=f"{section}-{counts[section]}",
                line=page.count("\n", 0, match.start("code")) + 1,
                code=match["code"],
                output=match["output"],
                span=match.span("output"),
            )
        )
    return found


def run(block: Block, path: Path = README, given: dict[str, Any] | None = None) -> str:
    """Execute `block` in a module of its own, with the names of `given`, and return what it prints.

    The code carries the file and lines of the page, so that tracebacks and reports quote the page. What it defines is
    put into `given`.
    """
    module = types.ModuleType(f"block_{block.name.replace('-', '_')}")
    module.__dict__.update(given or {})
    module.__file__ = str(path)
    code = compile("\n" * (block.line - 1) + block.code, str(path), "exec")
    printed = io.StringIO()
    sys.modules[module.__name__] = module
    try:
        with contextlib.redirect_stdout(printed):
            exec(code, module.__dict__)
    finally:
        del sys.modules[module.__name__]
    if given is not None:
        given.update((k, v) for k, v in vars(module).items() if not k.startswith("__"))
    return printed.getvalue()


def renew(page: str, path: Path = README) -> str:
    """The page with the output of every block as it is now.

    Blocks run in order and the page is read again after each, because an output that grows moves the
    line numbers that later blocks may print. Those of README.md stand alone, as a reader takes them; on the other
    pages each has the names of those before it.
    """
    given: dict[str, Any] | None = None if path == README else {}
    for index in range(len(blocks(page))):
        block = blocks(page)[index]
        printed = run(block, path, given)
        if block.output is not None:
            start, end = block.span
            page = page[:start] + printed + page[end:]
    return page


def main() -> int:
    """Renew the pages; 1 when a block raises, and then its page stays as it was."""
    return max(_renewed(path) for path in PAGES)


def _renewed(path: Path) -> int:
    page = path.read_text(encoding="utf-8")
    try:
        renewed = renew(page, path)
    except Exception:
        traceback.print_exc()
        print(f"{path.name}: a block raised, the page is unchanged", file=sys.stderr)
        return 1
    if renewed != page:
        path.write_text(renewed, encoding="utf-8")
    print(f"{path.name}: {len(blocks(page))} blocks run, {'renewed' if renewed != page else 'up to date'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
