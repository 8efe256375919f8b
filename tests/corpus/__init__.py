"""Programs that mutate, by kind. Each must behave under reink exactly as it does in eager PyTorch."""

from __future__ import annotations

import importlib

from corpus.registry import PROGRAMS, Program

_KINDS = (
    "views",
    "wrappers",
    "custom_ops",
    "boundary",
    "layouts",
    "dtypes",
    "random_and_effects",
    "caches",
    "dynamic",
    "foreach",
    "metadata",
    "control_flow",
    "outside",
    "known_behaviours",
    "known_inputs",
    "known_operators",
    "known_tensors",
)

for _kind in _KINDS:
    importlib.import_module(f"corpus.{_kind}")

__all__ = ["PROGRAMS", "Program"]
