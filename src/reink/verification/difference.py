"""The first thing in which two observations differ, in words that name the input and the element."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from reink.core.program import source_of
from reink.judge import Difference, Layout, Observed, differences
from reink.pipeline import Compiled
from reink.report import Source

Place = tuple[Layout, int]


class First(NamedTuple):
    """A difference in words, and the input whose memory differs, or the empty string."""

    text: str
    input: str


def first_difference(want: Observed, got: Observed, names: Sequence[str], tolerance: float) -> First | None:
    """What differs first: results before the memory of inputs. None if nothing does.

    `names` are those of the watched tensors, arguments first.
    """
    found = differences(want, got, tolerance)
    if not found:
        return None
    memory = _memory(want, got, names) if any(d.kind == "memory" for d in found) else First("", "")
    text = _said(found[0], want, got) if found[0].kind != "memory" else memory.text
    return First(text, memory.input)


def _said(difference: Difference, want: Observed, got: Observed) -> str:
    plain = " ".join(difference.text.split())
    if difference.kind != "value":
        return plain
    for k, (a, b) in enumerate(zip(want.results, got.results, strict=False)):
        element = _element(a, b) if a.shape == b.shape and a.dtype == b.dtype else ""
        if element:
            return f"result {k}{element}"
    return plain


def _memory(want: Observed, got: Observed, names: Sequence[str]) -> First:
    """The first watched tensor with another element, else the first whose storage differs around it."""
    around = First("", "")
    rows = zip(want.memory, got.memory, want.input_layouts, got.input_layouts, strict=False)
    for k, (a, b, old, new) in enumerate(rows):
        name = names[k] if k < len(names) else f"input {k}"
        if a.shape != b.shape:
            return First(f"the storage of {name}: eager {a.numel()} bytes, reink {b.numel()}", name)
        element = "" if torch.equal(a, b) else _element(_seen(a, old), _seen(b, new))
        if element:
            return First(f"{name}{element}", name)
        if not around.text and not torch.equal(a, b):
            byte = int((a != b).nonzero()[0])
            around = First(
                f"byte {byte} of the storage of {name}, outside {name}: eager {a[byte]}, reink {b[byte]}", ""
            )
    return around


def _seen(memory: Tensor, place: Place) -> Tensor:
    """The tensor that lay at `place` in a storage of these bytes."""
    layout, offset = place
    size = layout.dtype.itemsize
    whole = memory[: memory.numel() // size * size].view(layout.dtype)
    return whole.as_strided(layout.shape, layout.strides, offset)


def _element(want: Tensor, got: Tensor) -> str:
    """The first element that differs, as ``[1, 3]: eager 2.0, reink 1.0 (5 of 32 elements differ)``."""
    if want.shape != got.shape or want.dtype != got.dtype:
        return ""
    unlike = (want != got) & ~((want != want) & (got != got))
    count = int(unlike.sum())
    if not count:
        return ""
    at = tuple(int(k) for k in unlike.nonzero()[0])
    index = f"[{', '.join(map(str, at))}]" if at else ""
    total = f" ({count} of {want.numel()} elements differ)" if want.numel() > 1 else ""
    return f"{index}: eager {want[at].item()}, reink {got[at].item()}{total}"


def lines_that_write(compiled: Sequence[Compiled], name: str) -> tuple[Source, ...]:
    """The lines of the user's program that write input `name`, in program order, each once.

    Where inputs share memory, all that write the memory that they share.
    """
    wanted = re.sub(r"\W", "_", name)
    found = {}
    for choice in (c for one in compiled if one.plan is not None for c in one.plan.every_choice()):
        source = source_of(choice.node)
        buffer = choice.place.buffer if choice.place is not None else None
        if source is None or buffer is None or buffer.kind != "input":
            continue
        if buffer.name == wanted or re.fullmatch(r"base(_\d+)?", buffer.name):
            found[source.file, source.line] = source
    return tuple(found.values())
