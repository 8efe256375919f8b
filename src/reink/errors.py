"""The one exception of reink, and the list of everything that it can say.

Every refusal has a code. A code is a section of ``docs/errors.md``; a test compares the two sets.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType

CODES = MappingProxyType(
    {
        "not-a-tensor-program": "the thing given is not a program over tensors",
        "unknown-option": "an option that reink does not have, or a value that it cannot take",
        "data-dependent-python": "Python control flow depends on the values of a tensor",
        "no-fake-kernel": "an operator has no fake kernel, so its result shapes are unknown",
        "cannot-trace": "PyTorch raised while the program was traced without values",
        "mutated-constant": "the program writes a tensor that is a constant of the graph",
        "written-self-overlap": "a written tensor has elements that share memory",
        "metadata-mutation": "an operator changes size, strides or storage of a tensor, not its data",
        "view-outside-input": "a view reaches memory outside the input that it was made from",
        "unknown-alias": "an operator returns memory of an argument in a way that no view describes",
        "subgraph-mutation": "a branch or body of a control-flow operator writes what its call cannot bring out",
        "subgraph-alias": "a branch or body of a control-flow operator returns memory of an operand that is written",
        "tensor-subclass": "an input is a tensor subclass that cannot be taken apart into plain tensors",
        "needs-gradient": "the program needs gradients",
        "unknown-call": "a functional call of a mutable operator is not in the form that PyTorch writes",
        "no-values": "a node of a graph has no fake value",
        "aliased-inputs": "two inputs of a functional graph share memory, and one of them is written",
        "no-compiler": "code was to be generated for the CPU, and there is no C++ compiler",
        "not-pure": "a graph that has to be pure holds a write",
        "pass-failed": "a user pass raised, or left a graph that is not well-formed",
        "internal-ill-formed": "a step of reink left a graph that is not well-formed",
        "not-a-report": "a file is not a saved report",
        "not-found": "the file, module or name given on the command line does not exist",
        "bad-target": "the name given on the command line does not return (fn, args)",
        "cannot-audit": "an operator takes none of the arguments that were made from its schema",
        "other-inputs": "a functionalized program is called with inputs unlike those it was made for",
        "cannot-export": "an exported program cannot say what the program does, or says more than reink follows",
        "donated-input": "memory that was given away is used again, or returned",
        "strict-copy": "a copy remains and strict=True forbids it",
    }
)


class ReinkError(Exception):
    """A refusal that a user can act on: what was refused, where, why, and what to do.

    `code` is a key of `CODES`. `what` is one line without a final stop. `where`, `why` and `do` may be
    empty when there is nothing to say.
    """

    def __init__(self, code: str, what: str, *, where: str = "", why: str = "", do: str = "") -> None:
        assert code in CODES, f"no such code: {code}"
        self.code, self.what, self.where, self.why, self.do = code, what, where, why, do
        super().__init__(self._text())

    def _text(self) -> str:
        rows = [("where", self.where), ("why", self.why), ("do", self.do)]
        rows.append(("code", f"{self.code}   (docs/errors.md#{self.code})"))
        lines = [self.what]
        for label, text in rows:
            if text:
                lines.append(f"  {label:<6} " + text.replace("\n", "\n         "))
        return "\n".join(lines)

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (self.code, self.what, self.where, self.why, self.do))


def _rebuild(code: str, what: str, where: str, why: str, do: str) -> ReinkError:
    return ReinkError(code, what, where=where, why=why, do=do)


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """`error` and all that it wraps: causes, contexts, and what Dynamo calls its inner exception."""
    seen: set[int] = set()
    waiting = [error]
    while waiting:
        current = waiting.pop()
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        waiting += [current.__context__, current.__cause__, getattr(current, "inner_exception", None)]


def refusal_in(error: BaseException | None) -> ReinkError | None:
    """The ReinkError that `error` is, or that PyTorch wrapped in it; None if there is none."""
    return next((e for e in causes(error) if isinstance(e, ReinkError)), None)
