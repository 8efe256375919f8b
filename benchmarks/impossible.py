"""What is copied when a write cannot go in place: bytes, in the two forms of a mutable operator.

Form v1 gives a call its written arguments, so a call that cannot go in place copies the views; v2 gives it their
bases, so it copies those. In each program a reader takes an old value together with the new one, so that it can move
in front of no write. In eager an old value survives only as the user's clone. The pass `drop_clones` turns that clone
into a late read of the old version, which reink then has to place. The stock pipeline gets the program as written:
its own way to drop such clones can answer wrongly (pytorch#198031), so every answer is compared with eager's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from measure import allocated_bytes, print_table
from rich.console import Console
from stock import stock_compiled
from torch import Tensor, fx
from torch.overrides import TorchFunctionMode

import reink

HEADINGS = ("program", "base", "view", "aot v1", "aot v2", "ind v1", "ind v2", "reink v1", "reink v2", "needed", "user")
NOTE = """KiB beyond what eager allocates without its clones. base: an input, or made by the program and returned.
aot, ind: allocated by stock aot_eager, which copies always, and by inductor; *: the answer differs from eager.
reink: copied, as its report says; it allocates no more than that (asserted). needed: by hand.
user: the program's own clones; aot allocates them too, inductor drops them where it can, reink always"""
FORMS = ("v1", "v2")
WIDTH = 256
ROW = WIDTH * 4

Program = Callable[[Tensor], Tensor | tuple[Tensor, Tensor]]


@torch.library.custom_op("reink_benchmark::bump", mutates_args=("view",))
def bump(view: Tensor) -> None:
    """Add one."""
    view.add_(1)


@torch.library.custom_op("reink_benchmark::bump_both", mutates_args=("first", "second"))
def bump_both(first: Tensor, second: Tensor) -> None:
    """Add one to the first and two to the second."""
    first.add_(1)
    second.add_(2)


@torch.library.custom_op("reink_benchmark::weigh", mutates_args=())
def weigh(old: Tensor, new: Tensor) -> Tensor:
    """One number from an old value and a new one; no compiler looks inside, so both have to exist."""
    return 3 * old.sum() + new.sum()


bump.register_fake(lambda view: None)
bump_both.register_fake(lambda first, second: None)
weigh.register_fake(lambda old, new: old.new_empty(()))


@dataclass(frozen=True, slots=True)
class Case:
    """A program for a base of `rows` rows of which it writes `written`, the first ones unless it says otherwise.

    `needed` is the number of rows that have to exist twice, `formula` the same in words: view, base, row.
    """

    name: str
    program: Callable[[Tensor], Tensor]
    rows: int
    written: int
    needed: int
    formula: str


def cases(rows: int, written: int) -> Iterator[Case]:
    """The programs for one size of base and view."""

    def row_outside(base: Tensor) -> Tensor:
        old = base[-1].clone()
        bump(base[:written])
        return weigh(old, base[:written])

    def row_inside(base: Tensor) -> Tensor:
        old = base[written - 1].clone()
        bump(base[:written])
        return weigh(old, base[:written])

    half = written // 2
    across = min(written, rows - half)

    def slice_across(base: Tensor) -> Tensor:
        old = base[half : half + across].clone()
        bump(base[:written])
        return weigh(old, base[:written])

    def row_of_all(base: Tensor) -> Tensor:
        old = base.clone()
        bump(base[:written])
        return weigh(old[0], base)

    def base_and_view(base: Tensor) -> Tensor:
        old = base.clone()
        bump(base[:written])
        return weigh(old, base[:written])

    def base_and_base(base: Tensor) -> Tensor:
        old = base.clone()
        bump(base[:written])
        return weigh(old, base)

    each = max(1, half)

    def two_views(base: Tensor) -> Tensor:
        old = base[-1].clone()
        bump_both(base[:each], base[rows - each :])
        return weigh(old, base[:each])

    if written < rows:
        yield Case("old row outside the view", row_outside, rows, written, 0, "0")
    yield Case("old row of the view", row_inside, rows, written, 1, "row")
    yield Case("old slice across its end", slice_across, rows, written, across, "slice")
    yield Case("clone of all, a row used", row_of_all, rows, written, 1, "row")
    yield Case("all old, the view new", base_and_view, rows, written, written, "view")
    yield Case("all old, all new", base_and_base, rows, written, rows, "base")
    yield Case("two views, old row of one", two_views, rows, 2 * each, 1, "row")


def with_made_base(program: Callable[[Tensor], Tensor]) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """The program on a base that it makes itself, and returns."""

    def on_made_base(given: Tensor) -> tuple[Tensor, Tensor]:
        base = given * 2
        return program(base), base

    return on_made_base


def run(console: Console, quick: bool) -> None:
    """Print one table, a row for each program, kind of base and size of view."""
    rows = 1_000 if quick else 16_000
    views = (rows // 4,) if quick else (rows // 1_000, rows // 4, rows)
    table: dict[str, list[list[str]]] = {case.name: [] for case in cases(rows, rows // 4)}
    for written in views:
        for case in cases(rows, written):
            table[case.name].append(row(console, case, "input", case.program))
            if written == rows // 4:
                table[case.name].append(row(console, case, "made", with_made_base(case.program)))
    title = f"what is copied when a write cannot go in place, base of {rows * ROW >> 10:,} KiB, row of {ROW >> 10} KiB"
    print_table(console, title, HEADINGS, [cells for group in table.values() for cells in group], NOTE)


@torch.no_grad()
def row(console: Console, case: Case, kind: str, program: Program) -> list[str]:
    """The figures of one program; `kind` says where its base comes from."""
    measure = _Measure(program, torch.arange(case.rows * WIDTH).remainder(5).float().view(case.rows, WIDTH))
    given = (measure.base,)
    with console.status(f"{case.name}, {case.written} rows of {kind}"):
        stock = [
            measure.beyond_floor(stock_compiled(program, (measure.fresh(),), backend, form))
            for backend in ("aot_eager", "inductor")
            for form in FORMS
        ]
        placed = []
        for form in FORMS:
            torch._dynamo.reset()
            report = reink.explain(program, given, strategy=form, passes=(drop_clones,))
            fast = reink.compile(program, strategy=form, passes=(drop_clones,), fullgraph=True)
            allocated, right = measure.beyond_floor(fast)
            assert right, "reink answers otherwise than eager"
            assert allocated <= report.bytes_cloned, f"{allocated} bytes allocated, {report.bytes_cloned} reported"
            placed.append(_kib(report.bytes_cloned))
    user, _ = measure.beyond_floor(program)
    shown = [f"{_kib(count)}{'' if right else ' *'}" for count, right in stock]
    needed = f"{case.formula} = {_kib(case.needed * ROW)}" if case.needed else "0"
    return [case.name, kind, _kib(case.written * ROW), *shown, *placed, needed, _kib(user)]


def _kib(count: int) -> str:
    """Whole KiB: the results of one number that a compiled program may allocate again are no copies."""
    return f"{round(count / 1024):,}"


def drop_clones(graph: fx.Graph) -> None:
    """In a pure graph a clone is its source: what the user kept becomes a late read of the old version."""
    for node in list(graph.nodes):
        if node.target is torch.ops.aten.clone.default and not node.kwargs:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)


class _Measure:
    """One program and the base to call it on: eager's answer, and what eager allocates without its clones."""

    def __init__(self, program: Program, base: Tensor) -> None:
        self.base = base
        self._base_after = self.fresh()
        self._answer = program(self._base_after)
        call = self._call(program)
        with _WithoutClones():
            self._floor = allocated_bytes(call)

    def fresh(self) -> Tensor:
        """The base as it is before a call."""
        return self.base.clone()

    def beyond_floor(self, fn: Program) -> tuple[int, bool]:
        """Bytes that a second call allocates beyond the floor, and whether the first did as eager does."""
        base = self.fresh()
        right = _equal(fn(base), self._answer) and _equal(base, self._base_after)
        return allocated_bytes(self._call(fn)) - self._floor, right

    def _call(self, fn: Program) -> Callable[[], object]:
        base = self.fresh()
        return lambda: fn(base)


def _equal(left: Tensor | tuple[Tensor, ...], right: Tensor | tuple[Tensor, ...]) -> bool:
    if isinstance(left, Tensor) or isinstance(right, Tensor):
        return isinstance(left, Tensor) and isinstance(right, Tensor) and torch.equal(left, right)
    return len(left) == len(right) and all(map(torch.equal, left, right))


class _WithoutClones(TorchFunctionMode):
    """A clone is its source: such a run allocates what it would if no old value had to be kept."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return args[0] if func is Tensor.clone else func(*args, **(kwargs or {}))
