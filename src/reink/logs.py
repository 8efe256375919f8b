"""Where the log of reink goes: to the loggers ``reink.*`` of Python, and by ``REINK_LOG`` to the terminal.

PyTorch's own switch works too: ``TORCH_LOGS="+reink"``.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

VARIABLE = "REINK_LOG"
LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def switch_on(environment: Mapping[str, str]) -> None:
    """Write the log to standard error from the level that ``REINK_LOG`` names; nothing where it is not set."""
    asked = environment.get(VARIABLE, "").strip().lower()
    if not asked:
        return
    logger = logging.getLogger("reink")
    if asked not in LEVELS:
        logger.warning("%s=%s is no level: use one of %s", VARIABLE, asked, ", ".join(LEVELS))
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(name)s %(levelname)s: %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(LEVELS[asked])
