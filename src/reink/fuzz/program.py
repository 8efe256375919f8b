"""A random program as data: storages, inputs that lie in them, statements of Python, and what is returned.

`FuzzProgram.text` is its function and the maker of its inputs; `FuzzProgram.file` a file that runs by itself and
shows in what a back end differs from eager.
"""

from __future__ import annotations

import inspect
import linecache
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from reink.fuzz.lifting import lifted_branch, lifted_loop
from reink.fuzz.operators import ops, source_of
from reink.judge import GradMode

_OPERATOR = re.compile(r"\bops\.(\w+)")
_CONTROL = re.compile(r"\b(branch|loop)\(")


def branch(flag: Tensor, yes: Callable[..., Tensor], no: Callable[..., Tensor], *operands: Tensor) -> Tensor:
    """``torch.cond`` where the program is compiled; in eager, which lets no branch write, the branch in Python."""
    if torch.compiler.is_compiling() or type(flag) is not Tensor:
        taken: Tensor = torch.cond(flag, yes, no, operands)
        return taken
    return yes(*operands) if flag else no(*operands)


def loop(goes_on: Callable[..., Tensor], body: Callable[..., Any], *state: Tensor) -> tuple[Tensor, ...]:
    """``torch.while_loop`` where the program is compiled; in eager the loop in Python."""
    if torch.compiler.is_compiling() or type(state[0]) is not Tensor:
        last: tuple[Tensor, ...] = torch.while_loop(goes_on, body, state)
        return last
    while goes_on(*state):
        state = body(*state)
    return state


# What the text of a program may name besides its own values.
GLOBALS: dict[str, Any] = {"torch": torch, "ops": ops, "branch": lifted_branch(branch), "loop": lifted_loop(loop)}
_SHOWN: dict[str, Callable[..., Any]] = {"branch": branch, "loop": loop}


@dataclass(frozen=True, slots=True)
class Storage:
    """Memory that inputs lie in: `length` elements of `dtype`, each with a value of its own."""

    dtype: str
    length: int
    first: int

    def text(self) -> str:
        """An expression that makes it."""
        count = f"torch.arange({self.first}, {self.first + self.length})"
        return f"{count} % 3 == 0" if self.dtype == "bool" else f"{count}.to(torch.{self.dtype})"


@dataclass(frozen=True, slots=True)
class Input:
    """One input: a view of storage number `storage` as `dtype`, or, if `same_as` is set, that earlier input again.

    `size`, `stride` and `offset` are in elements of `dtype`.
    """

    name: str
    storage: int
    dtype: str
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    same_as: str = ""
    requires_grad: bool = False


@dataclass(frozen=True, slots=True)
class Statement:
    """One line of a program, made by `rule`.

    `written` and `read` are expressions for what it writes and what it reads while it writes: where they share
    memory other than exactly, the program would be undefined, unless the statement is `sequential`.
    """

    rule: str
    text: str
    defines: tuple[str, ...] = ()
    written: tuple[str, ...] = ()
    read: tuple[str, ...] = ()
    sequential: bool = False


@dataclass(frozen=True, slots=True)
class FuzzProgram:
    """A program that eager PyTorch accepts. `seed` and `number` make it again.

    `gradients`: inputs may require grad and a backward pass follows. `dynamic`: sizes are compiled as symbols.
    """

    seed: int
    number: int
    storages: tuple[Storage, ...]
    inputs: tuple[Input, ...]
    statements: tuple[Statement, ...]
    outputs: tuple[str, ...]
    gradients: bool = False
    dynamic: bool = False

    @property
    def grad_mode(self) -> GradMode:
        """How it is called."""
        return "grad" if self.gradients else "no_grad"

    @property
    def rules(self) -> tuple[str, ...]:
        """The kinds of statements in it, each once, sorted."""
        return tuple(sorted({s.rule for s in self.statements}))

    def text(self) -> str:
        """Python source of ``make_inputs`` and ``program``."""
        lines = ["def make_inputs():"]
        lines += [f"    s{k} = {s.text()}" for k, s in enumerate(self.storages)]
        lines += [f"    {i.name} = {self._input_text(i)}" for i in self.inputs]
        names = ", ".join(i.name for i in self.inputs)
        lines += [f"    return ({names},)", "", "", f"def program({names}):"]
        lines += [f"    {line}" for s in self.statements for line in s.text.splitlines()]
        return "\n".join([*lines, f"    return ({', '.join(self.outputs)},)", ""])

    def _input_text(self, given: Input) -> str:
        if given.same_as:
            return given.same_as
        base = f"s{given.storage}"
        if given.dtype != self.storages[given.storage].dtype:
            base += f".view(torch.{given.dtype})"
        text = f"{base}.as_strided({given.size}, {given.stride}, {given.offset})"
        return f"{text}.detach().requires_grad_()" if given.requires_grad else text

    def functions(self) -> tuple[Callable[..., Any], Callable[[], tuple[Tensor, ...]]]:
        """The program and the maker of its inputs, with lines that a report can show."""
        name, text = f"fuzz/program_{self.seed}_{self.number}.py", self.text()
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
        made = dict(GLOBALS)
        exec(compile(text, name, "exec"), made)
        return made["program"], made["make_inputs"]

    def apart(self) -> FuzzProgram:
        """The same program for inputs of the same layout in memory of their own."""
        storages: list[Storage] = []
        inputs: list[Input] = []
        for given in self.inputs:
            source = next(i for i in self.inputs if i.name == given.same_as) if given.same_as else given
            storages.append(replace(self.storages[source.storage], first=self.storages[source.storage].first + 1))
            inputs.append(replace(source, name=given.name, storage=len(storages) - 1))
        return replace(self, storages=tuple(storages), inputs=tuple(inputs))

    def shifted(self) -> FuzzProgram:
        """The same program for inputs of other values."""
        return replace(self, storages=tuple(replace(s, first=s.first + 17) for s in self.storages))

    def file(self, about: str) -> str:
        """A file that needs only PyTorch; run with the name of a back end it prints what differs, and exits 1."""
        operators = source_of(_OPERATOR.findall(self.text()))
        control = [inspect.getsource(_SHOWN[name]) for name in sorted(set(_CONTROL.findall(self.text())))]
        mode = "contextlib.nullcontext" if self.gradients else "torch.no_grad"
        head = _HEAD.format(about=about.replace('"""', "'''"), seed=self.seed, number=self.number)
        return (
            "\n\n".join(
                part.strip("\n")
                for part in (head, operators, *control, self.text(), _TAIL.format(mode=mode, dynamic=self.dynamic))
                if part
            )
            + "\n"
        )


_HEAD = '''"""{about}

Program {number} of seed {seed}. Run this file with the name of a back end of torch.compile.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

'''

_TAIL = '''def seen(call):
    """What a caller sees after the call: layout, content, whole storage and sharing of inputs and results."""
    torch.manual_seed(0)
    inputs = make_inputs()
    with {mode}():
        results = call(*inputs)
        tensors = [*inputs, *(r for r in torch.utils._pytree.tree_leaves(results) if isinstance(r, Tensor))]
        losses = [r.sum() for r in tensors[len(inputs) :] if r.requires_grad]
        if losses:
            sum(losses).backward()
    gradients = [t.grad for t in inputs if t.is_leaf and t.grad is not None]
    storages = [t.untyped_storage() for t in tensors]
    lines = []
    for k, t in enumerate([*tensors, *gradients]):
        name = f"input {{k}}" if k < len(inputs) else f"result {{k - len(inputs)}}" if k < len(tensors) else "gradient"
        lines.append(f"{{name}}: {{t.dtype}} {{tuple(t.shape)}} strides {{t.stride()}} {{t.flatten().tolist()}}")
    for k, s in enumerate(storages):
        shared = [j for j, other in enumerate(storages) if other.data_ptr() == s.data_ptr()]
        lines.append(f"memory {{k}}: shared with {{shared}}, bytes {{list(s) if k < len(inputs) else '-'}}")
    return lines


if __name__ == "__main__":
    backend = sys.argv[1] if len(sys.argv) > 1 else "reink"
    # the kernels of eager, so that numbers agree to the last bit
    options = {{"codegen": "eager"}} if backend == "reink" else None
    compiled_program = torch.compile(program, backend=backend, dynamic={dynamic}, options=options)
    pairs = zip(seen(program), seen(compiled_program), strict=False)
    different = [pair for pair in pairs if pair[0] != pair[1]]
    for eager, compiled in different:
        print("eager:   ", eager)
        print("compiled:", compiled)
    print("different" if different else "equal")
    sys.exit(1 if different else 0)
'''
