"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def replace_file(path: str | Path, text: str) -> None:
    """Write `text` as UTF-8 to `path`; if that fails, what was there before still is.

    Half a letter, as a file name may hold, is written as its escape.
    """
    with replacing(path) as beside:
        beside.write_bytes(text.encode("utf-8", errors="backslashreplace"))


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """A file to write in the place of `path`, with the same suffix; it takes that place when nothing is raised.

    What is no file, such as ``/dev/stdout``, cannot be replaced: it is `path` itself.
    """
    target = Path(path).resolve()
    if target.exists() and not target.is_file():
        yield target
        return
    beside = target.with_name(f".{target.name[:100]}.{os.getpid()}.new{target.suffix[:20]}")
    try:
        yield beside
        if target.exists():
            shutil.copymode(target, beside)
        os.replace(beside, target)
    finally:
        with suppress(OSError):
            beside.unlink()
