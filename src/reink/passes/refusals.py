"""What functionalize refuses, as coded errors with the user's line. A part of functionalize."""

from __future__ import annotations

from typing import Any

import torch
import torch.fx

from reink.core.aliasing import Buffer, Place
from reink.core.opinfo import OpFacts
from reink.core.program import source_of
from reink.core.torch_internals import expression, has_data_dependent_size, storage_key
from reink.errors import ReinkError

Node = torch.fx.Node
Tensor = torch.Tensor


def where(node: Node) -> str:
    """The user's line of a node, or its name when no line is known."""
    source = source_of(node)
    return str(source) if source is not None else f"node {node.name}"


def unknown_alias(node: Node, facts: OpFacts) -> ReinkError:
    """An operator returns memory of an argument and no view says which."""
    return ReinkError(
        "unknown-alias",
        f"cannot functionalize {facts.name}: it returns memory of an argument in a way that no view describes",
        where=where(node),
        why="later writes through one of the two names could not be shown through the other",
        do="return a new tensor, or declare the alias in the schema as Tensor(a) -> Tensor(a)",
    )


def metadata_mutation(node: Node, facts: OpFacts) -> ReinkError:
    """An operator changes what a tensor is."""
    return ReinkError(
        "metadata-mutation",
        f"cannot functionalize {facts.name}: it changes what a tensor is, not what it holds",
        where=where(node),
        why="size, strides or storage of a tensor that may have other names would change",
        do="make a new tensor (a view or a copy) and use that instead",
    )


def given_other_memory(node: Node, facts: OpFacts, name: str = "a tensor") -> ReinkError:
    """A tensor object gets other memory than it had: the caller's, or one whose new memory no place says."""
    return ReinkError(
        "metadata-mutation",
        f"cannot functionalize {facts.name}: it gives {name} other memory",
        where=where(node),
        why="the caller would hold a tensor whose memory the graph made, or that of another tensor, and every view of "
        "the old memory would stay behind",
        do="return the new tensor and let the caller take it, or copy its values (x.copy_(y))",
    )


class OutsideInput(ReinkError):
    """A view may leave the memory that the graph owns: that of input number `input`, -1 if of none."""

    input = -1


def outside_input(node: Node, buffer: Buffer) -> OutsideInput:
    """A view by strides may leave the memory that the graph owns."""
    error = OutsideInput(
        "view-outside-input",
        f"cannot functionalize as_strided: it may reach outside {buffer.name}",
        where=where(node),
        why="the graph owns only the elements of its tensors, not what lies between or beyond them",
        do="take the view from a tensor that covers all of it",
    )
    error.input = buffer.input_index
    return error


def outgrown_input(node: Node, facts: OpFacts, buffer: Buffer) -> OutsideInput:
    """An input is made larger than the memory that the graph owns of it."""
    error = OutsideInput(
        "metadata-mutation",
        f"cannot functionalize {facts.name}: it makes {buffer.name} larger than its memory",
        where=where(node),
        why="the storage of the caller's tensor would have to grow, and with it that of all that shares it",
        do="make a new tensor of the size that is needed and copy into it, or pass one that is large enough",
    )
    error.input = buffer.input_index
    return error


def refuse_unwritable(node: Node, facts: OpFacts, dest: Any, *, by_call: bool = False) -> None:
    """Refuse to write a constant, or a tensor whose elements are one memory cell, as eager does.

    `by_call`: the operator is kept as it is, so its own answer to overlapping elements counts.
    """
    if type(dest) is not Place:
        raise unknown_alias(node, facts)
    if dest.buffer.kind == "constant":
        raise ReinkError(
            "mutated-constant",
            f"cannot functionalize {facts.name}: it writes {dest.buffer.name}, a constant of the graph",
            where=where(node),
            why="a constant belongs to the graph, not to the caller, so the write would be lost or repeated",
            do="pass the tensor as an argument or register it as a buffer",
        )
    if not by_call and dest.has_broadcast_dim():
        raise ReinkError(
            "written-self-overlap",
            f"cannot functionalize {facts.name}: several elements of the written tensor are one memory cell",
            where=where(node),
            why="the tensor was expanded (a stride is 0), and eager refuses to write it as well",
            do="write the tensor before it is expanded, or clone() the expanded one",
        )


def refuse_unknown_squeeze(node: Node, facts: OpFacts) -> None:
    """Refuse to squeeze a dim of which only the data say whether it has one element: tracing takes it for more."""
    value = node.args[0].meta["val"]  # type: ignore[union-attr]
    asked: Any = node.args[1] if len(node.args) > 1 else range(value.dim())
    dims = [asked] if isinstance(asked, int) else asked
    if value.dim() and any(has_data_dependent_size(value.size(d)) for d in dims):
        raise ReinkError(
            "data-dependent-python",
            f"cannot functionalize {facts.name}: what it returns depends on a size that only the data decide",
            where=where(node),
            why="a dim of one element goes away, any other stays, and the number of dims has to be known",
            do="use select(dim, 0), or view it in the shape that you mean",
        )


def doubtful_copy(node: Node) -> ReinkError:
    """Only the data say whether eager returns a view here, and it would show."""
    return ReinkError(
        "data-dependent-python",
        "cannot functionalize a reshape, contiguous or to: only the data decide whether it returns a view or a copy",
        where=where(node),
        why="one of the two tensors is written while the other is in use, or both are returned, and they may be one",
        do="clone() the result, or use view, which is never a copy",
    )


def refuse_hidden_alias(node: Node, facts: OpFacts) -> None:
    """Refuse a result that is memory of an argument although the schema says it is not."""
    value = node.meta.get("val")
    if value is None:
        return
    results = value if isinstance(value, (list, tuple)) else (value,)
    declared = facts.result_aliases if len(facts.result_aliases) == len(results) else (-1,) * len(results)
    fresh = [r for r, a in zip(results, declared, strict=True) if a < 0 and isinstance(r, Tensor)]
    if not fresh:
        return
    given = {storage_key(n.meta["val"]) for n in node.all_input_nodes if isinstance(n.meta.get("val"), Tensor)}
    if any(expression(r.numel()) != 0 and storage_key(r) in given for r in fresh):
        raise unknown_alias(node, facts)


def subgraph_mutation(node: Node, facts: OpFacts, what: str) -> ReinkError:
    """A graph of a control-flow operator writes what no result of the call can carry out of it."""
    return ReinkError(
        "subgraph-mutation",
        f"cannot functionalize {facts.name}: a graph inside it writes {what}",
        where=where(node),
        why="the call has no result that could bring the new value out",
        do="return the new value from the graph and write it outside",
    )


def subgraph_alias(node: Node, facts: OpFacts) -> ReinkError:
    """A graph of a control-flow operator hands memory of its inputs on, and something is written."""
    return ReinkError(
        "subgraph-alias",
        f"cannot functionalize {facts.name}: a graph inside it returns memory of its operands",
        where=where(node),
        why="which memory a later write reaches would depend on what happens at run time",
        do="return a copy from the graph: clone() the result",
    )
