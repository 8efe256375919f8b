"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path


def replace_file(path: str | Path, text: str) -> None:
    """Write `text` as UTF-8 to `path`; if that fails, what was there before still is.

    Half a letter, as a file name may hold, is written as its escape. What is no file, such as ``/dev/stdout``, cannot
    be replaced and is written to.
    """
    content = text.encode("utf-8", errors="backslashreplace")
    target = Path(path).resolve()
    if target.exists() and not target.is_file():
        target.write_bytes(content)
        return
    beside = target.with_name(f".{target.name[:100]}.{os.getpid()}.new")
    try:
        beside.write_bytes(content)
        if target.exists():
            shutil.copymode(target, beside)
        os.replace(beside, target)
    finally:
        with suppress(OSError):
            beside.unlink()
