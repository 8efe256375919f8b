"""The documentation does what it says: README blocks run, `make help` is complete."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from docs.build import PAGES, README, Block, blocks, renew, run

ROOT = README.parent
PAGE = "# t\n## One two\n```python\nprint(1 + 1)\n```\n\n```text\nold\n```\n\n```python\nx = 3\n```\n"


@pytest.mark.parametrize("block", blocks(README.read_text(encoding="utf-8")), ids=lambda block: block.name)
def test_readme_block_runs_and_prints_what_is_shown(block: Block) -> None:
    printed = run(block)
    if block.output is not None:
        assert printed == block.output, f"README.md:{block.line}: the output shown is old; run make docs"


@pytest.mark.parametrize("path", [p for p in PAGES if p != README], ids=lambda path: path.name)
def test_page_shows_what_its_blocks_print(path: Path) -> None:
    page = path.read_text(encoding="utf-8")
    assert len(blocks(page)) >= 3
    assert renew(page, path) == page, f"{path.name}: an output is old; run make docs"


def test_readme_has_blocks() -> None:
    assert len(blocks(README.read_text(encoding="utf-8"))) >= 3


def test_blocks_know_their_section_line_and_output() -> None:
    first, second = blocks(PAGE)
    assert (first.name, first.line, first.output) == ("one-two-1", 4, "old\n")
    assert (second.name, second.line, second.output) == ("one-two-2", 12, None)


def test_renewed_page_shows_what_is_printed() -> None:
    assert renew(PAGE) == PAGE.replace("old", "2")


def test_a_block_that_raises_names_its_line(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# t\n\n```python\nx = 1\nx.missing\n```\n", encoding="utf-8")
    (block,) = blocks(page.read_text(encoding="utf-8"))
    with pytest.raises(AttributeError) as caught:
        run(block, page)
    last = caught.traceback[-1]
    assert (last.path, last.lineno + 1) == (page, 5)


def test_make_help_lists_every_target() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = re.findall(r"^([a-z-]+):(?!=)", makefile, flags=re.MULTILINE)
    done = subprocess.run(["make", "-s", "-C", str(ROOT), "help"], capture_output=True, text=True, check=True)
    listed = [line.split()[0] for line in done.stdout.splitlines() if line.startswith("  ")]
    assert listed == targets
    phony = re.search(r"^\.PHONY: (.+)$", makefile, flags=re.MULTILINE)
    assert phony is not None
    assert sorted(phony[1].split()) == sorted(targets)
