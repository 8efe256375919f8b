"""What reinplace decided, as data for lower and for the checker: an order, a place for every value, and copies."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import torch.fx

from reink.core.aliasing import Place
from reink.core.program import Program

Node = torch.fx.Node


class Action(Enum):
    """How one functional node is carried out."""

    __hash__ = object.__hash__  # that of Enum runs Python code

    RUN = "run as it is, results in new memory"
    NOTHING = "no code: the value is where it has to be"
    IN_PLACE = "the in-place twin, on the place of its first operand"
    OUT = "the form that is given the place for its result"
    COPY_INTO = "copy the source into the place"
    CALL = "the mutable operator itself, on the places of its bases or written arguments"


def total(counts: Iterable[int | None]) -> int | None:
    """The sum of numbers of bytes; None when one of them is symbolic."""
    known = list(counts)
    return None if None in known else sum(c or 0 for c in known)


@dataclass(slots=True)
class Copy:
    """A copy that reinplace adds: `source` is copied to the root of a new buffer, `target`.

    `moved` are the values that live in the copy from here on. `filled` is False when the content does not
    matter and only the memory is needed. `exact` asks for the strides of the target, also where they leave gaps.
    """

    source: Place
    target: Place
    moved: list[tuple[Node, Place]] = field(default_factory=list)
    filled: bool = True
    exact: bool = False


@dataclass(slots=True)
class Step:
    """One functional node in execution order.

    `place` is where a write goes; `source` the value copied by ``COPY_INTO``; `before` the copies made first;
    `places` the places of a call's bases (v2) or written arguments (v1), `views` that of each `BaseView`;
    `defines` the values that exist afterwards.
    """

    node: Node
    action: Action
    place: Place | None = None
    source: Node | None = None
    before: tuple[Copy, ...] = ()
    places: tuple[Place, ...] = ()
    views: tuple[Place, ...] = ()
    defines: tuple[tuple[Node, Place | None], ...] = ()


@dataclass(slots=True)
class Choice:
    """The raw record behind a report's Decision: what became of one written operand of `node`.

    `bytes` and `avoided` are None when symbolic. `reader` and `definition` are the conflict, when there was one: the
    reader needs what lies in `needed`, and the write goes to the places `written`.
    """

    node: Node
    operator: str
    argument: str
    outcome: str
    bytes: int | None
    avoided: int | None
    place: Place | None
    reason: str = ""
    do: str = ""
    reader: Node | None = None
    definition: Node | None = None
    needed: Place | None = None
    written: tuple[Place, ...] = ()


@dataclass(slots=True)
class Plan:
    """The re-inplaced form of `program`. `inputs` and `constants` are the places of what exists before;
    `final` are copies made for results, and `results` the place of each result that is a tensor of its own.
    `subgraphs` are the plans of the graphs that calls of this one run, by name. `needed`: no choice of writes to detach
    and values to save copies fewer bytes in this order; None when sizes are symbolic."""

    program: Program
    steps: list[Step]
    inputs: list[Place | None]
    constants: dict[Node, Place]
    choices: list[Choice]
    final: list[Copy] = field(default_factory=list)
    results: dict[int, Any] = field(default_factory=dict)
    subgraphs: dict[str, Plan] = field(default_factory=dict)
    needed: int | None = None

    def bytes_copied(self) -> int | None:
        """What the choices of this graph copy in all; None when a size is symbolic."""
        return total(c.bytes for c in self.choices)

    def lower_bound(self) -> int | None:
        """`needed`, with that of the graphs inside; None when a size is symbolic."""
        return total([self.needed, *(inner.lower_bound() for inner in self.subgraphs.values())])

    def every_choice(self) -> list[Choice]:
        """The choices of this graph, then those of the graphs inside it."""
        return self.choices + [c for inner in self.subgraphs.values() for c in inner.every_choice()]
