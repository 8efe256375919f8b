"""The story of one compile, as plain data for its report.

Nothing of it is kept while a program is compiled. When someone asks, functionalize walks over the captured program
once more, and this time somebody takes notes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.fx

from reink.core.aliasing import Buffer, Place
from reink.core.epilogue import with_epilogue
from reink.core.lifetimes import lifetimes
from reink.core.opinfo import Kind, facts_of
from reink.core.plan import Choice
from reink.core.printing import program_lines
from reink.core.program import Form, Program, source_of
from reink.passes.functionalize import functionalize
from reink.report import Conflict, Decision, Event, Held, Line, Region, Snapshot, Source, amount

Node = torch.fx.Node

_WRITES = frozenset({Kind.IN_PLACE, Kind.CALL, Kind.METADATA})
_VIEWS = frozenset({Kind.VIEW, Kind.VIEW_LIST})
# What lower says about its nodes, in the words of a report.
_ROLES = {
    "view": "view",
    "copy": "copy",
    "in place": "write",
    "write": "write",
    "call": "write",
    "epilogue": "epilogue",
}


class Sources:
    """The lines of the user's program, numbered as they are met. Each stack trace is read once."""

    def __init__(self) -> None:
        self.lines: list[Source] = []
        self._by_trace: dict[str, int] = {}
        self._by_line: dict[Source, int] = {}

    def number(self, node: Node) -> int:
        """The number of the line that `node` came from, or -1."""
        trace = node.meta.get("stack_trace")
        if not trace:
            return -1
        found = self._by_trace.get(trace)
        if found is None:
            found = self._by_trace[trace] = self._add(source_of(node))
        return found

    def _add(self, source: Source | None) -> int:
        if source is None:
            return -1
        if source not in self._by_line:
            self._by_line[source] = len(self.lines)
            self.lines.append(source)
        return self._by_line[source]


def snapshot(step: str, program: Program, sources: Sources, of: dict[str, str] | None = None) -> Snapshot:
    """The program as it is now. `of` names what is behind each node; without it, the nodes of a lowered program say."""
    written = list(program_lines(program))
    position = {node: k for k, (_, node) in enumerate(written) if node is not None}
    end = position.get(program.output(), len(written) - 1)
    lines = tuple([_line(node, sources, of) if node is not None else Line() for _, node in written])
    held = tuple([Held(h.name, h.kind, h.bytes, h.first, h.last) for h in lifetimes(program, position, end)])
    count = sum(1 for n in program.graph.nodes if n.op == "call_function")
    return Snapshot(step, program.form.value, "\n".join([text for text, _ in written]), count, lines, held)


def _line(node: Node, sources: Sources, of: dict[str, str] | None) -> Line:
    if node.op != "call_function":
        return Line(node.name, "", -1, "result" if node.op == "output" else "")
    behind = of.get(node.name, "") if of is not None else _behind(node)
    return Line(node.name, behind, sources.number(node), _role(node))


def _behind(node: Node) -> str:
    found = node.meta.get("reink_of")
    return found.name if isinstance(found, Node) else ""


def _role(node: Node) -> str:
    lowered = node.meta.get("reink_role")
    if lowered is not None:
        return _ROLES.get(lowered, "pure")
    facts = facts_of(node.target)
    if facts.kind in _VIEWS:
        return "view"
    if facts.kind in _WRITES:
        return "write"
    return "pure"


@dataclass(slots=True)
class Functionalized:
    """The first act: the pure program as it was made, and what the ledger went through."""

    snapshot: Snapshot
    events: list[Event]
    of: dict[str, str]


def functionalized(captured: Program, strategy: str, sources: Sources) -> Functionalized | None:
    """Functionalize a captured program again and take notes; None for one that was pure from the start."""
    if captured.form is not Form.MUTABLE:
        return None
    notes = _Notes(captured)
    pure = functionalize(captured, strategy=strategy, record=notes.entry, watch=notes.passed)
    whole = with_epilogue(pure)
    copies = [node.name for node in whole.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)]
    notes.close(pure, copies)
    taken = snapshot("functionalize", whole, sources, notes.of)
    last = frozenset(copies)
    lines = tuple([line._replace(role="epilogue") if line.node in last else line for line in taken.lines])
    return Functionalized(replace(taken, form="functional", lines=lines), notes.events, notes.of)


class _Notes:
    """What happens while a captured program is made pure. `of`: the captured node behind each functional one."""

    def __init__(self, captured: Program) -> None:
        self.events: list[Event] = []
        self.of: dict[str, str] = {}
        self._graph = captured.graph
        self._unassigned = 0
        self._last: Node | None = None
        self._versions: dict[Buffer, int] = {}
        self._places: dict[Buffer, dict[Place, int]] = {}

    def entry(self, kind: str, place: Place, version: int, node: str) -> None:
        """An entry of the ledger."""
        self._versions[place.buffer] = version
        self._note(kind, place, version, node)

    def passed(self, node: Node, value: Any, graph: torch.fx.Graph) -> None:
        """`node` became `value`, and `graph` holds all that was made so far. A graph inside counts as its call."""
        if node.graph is not self._graph:
            return
        if type(value) is Place:
            self._note("name", value, self._versions[value.buffer], node.name)
        for k in range(self._unassigned, len(self.events)):
            self.events[k] = self.events[k]._replace(of=node.name)
        self._unassigned = len(self.events)
        last = self._last
        for new in reversed(graph.nodes):
            if new is last:
                break
            self.of[new.name] = node.name
        self._last = next(iter(reversed(graph.nodes)), None)

    def close(self, pure: Program, copies: list[str]) -> None:
        """The epilogue, which carries the newest version into each written input."""
        versions = {buffer.name: version for buffer, version in self._versions.items()}
        inputs = pure.placeholders()
        for mutation, copy in zip(pure.signature.mutations, copies, strict=False):
            name = inputs[mutation.input].name
            self.events.append(Event("epilogue", name, versions.get(name, 0), copy))

    def _note(self, kind: str, place: Place, version: int, node: str) -> None:
        known = self._places.setdefault(place.buffer, {place.buffer.root: 0})
        number = known.setdefault(place, len(known))
        self.events.append(Event(kind, place.buffer.name, version, node, "", number, _region(place)))


def _region(place: Place | None) -> Region | None:
    """The bytes of a place as plain data; None when sizes are symbolic."""
    region = place.region if place is not None else None
    return None if region is None else Region(region.lo, region.dims)


def decision(index: int, choice: Choice) -> Decision:
    """What became of one written operand, in words and numbers."""
    conflict = None
    if choice.reader is not None and choice.definition is not None:
        conflict = Conflict(
            read=choice.reader.name,
            definition=choice.definition.name,
            write=choice.node.name,
            read_source=source_of(choice.reader),
            write_source=source_of(choice.node),
            needed=_region(choice.needed),
            written=tuple([r for p in choice.written if (r := _region(p)) is not None]),
            storage_bytes=choice.place.buffer.root.byte_count() if choice.place is not None else None,
        )
    return Decision(
        id=index,
        operator=choice.operator,
        argument=choice.argument,
        outcome=choice.outcome,  # type: ignore[arg-type]
        bytes=choice.bytes,
        avoided=choice.avoided,
        size="a symbolic number of bytes" if choice.bytes is None else amount(choice.bytes),
        reason=choice.reason,
        do="" if choice.outcome in ("in place", "hoisted") else choice.do,
        node=choice.node.name,
        source=source_of(choice.node),
        conflict=conflict,
        storage=choice.place.buffer.name if choice.place is not None else "",
    )
