"""The steps know nothing of a device: what they make of a program is the same wherever its tensors lie.

``meta`` stands for every device but the CPU: its tensors have no address, and mixing them with CPU tensors is an
error, so a place that takes the CPU for granted shows.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from corpus import PROGRAMS, Program
from support.judge import compare
from support.library import LONG, compiled, no_fallback
from test_passes import drop_clones
from torch import Tensor

import reink
from reink.core.boundary import alias_pattern, members_of
from reink.core.torch_internals import pytree, storage_key
from reink.core.wrappers import wrapper_of
from reink.judge import Observed, observe
from reink.report import Report


def moved(values: Sequence[Any], device: str) -> tuple[Any, ...]:
    """`values` with the tensors on `device`: same layouts, and whatever shares memory shares it there too."""
    storages: dict[int, Any] = {}
    tensors: dict[int, Tensor] = {}

    def move(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        wrapper = wrapper_of(value)
        if wrapper is not None:
            return wrapper.together(map(move, wrapper.apart(value)))
        if id(value) not in tensors:
            tensors[id(value)] = _moved_tensor(value, device, storages)
        return tensors[id(value)]

    return tuple(pytree.tree_map(move, list(values)))


def _moved_tensor(tensor: Tensor, device: str, storages: dict[int, Any]) -> Tensor:
    key = storage_key(tensor)
    if key not in storages:
        held = torch.empty(0, dtype=torch.uint8).set_(tensor.detach().untyped_storage())
        storages[key] = held.to(device).untyped_storage()
    new = torch.empty(0, dtype=tensor.dtype, device=device)
    new = new.set_(storages[key], tensor.storage_offset(), tensor.size(), tensor.stride())
    new = new.conj() if tensor.is_conj() else new
    new = new._neg_view() if tensor.is_neg() else new
    return new.requires_grad_(tensor.requires_grad)


def on_device(fn: Any, device: str) -> Any:
    """The program with what it makes and holds on `device`."""
    if isinstance(fn, torch.nn.Module):
        return fn.to(device)

    @functools.wraps(fn)
    def program(*args: Any) -> Any:
        with torch.device(device):
            return fn(*args)

    return program


# Not compared, each with the reason: PyTorch itself traces these otherwise on another device.
TRACED_OTHERWISE = {
    "window_sums": "a number that is assigned is a constant on the CPU and a call elsewhere",
    "number_argument": "a number that is assigned is a constant on the CPU and a call elsewhere",
    "masked_writes": "a number that is assigned is a constant on the CPU and a call elsewhere",
    "indexed_family": "torch.tensor makes a constant that is lifted on the CPU only",
    "batch_norm_without_training": "statistics that nobody reads are empty on the CPU only",
    "module_with_cache": "makes a tensor of the default device inside a module",
    "constant_made_inside_and_written": "torch.tensor makes a constant that is lifted on the CPU only",
    "number_made_inside_and_written": "torch.tensor makes a constant that is lifted on the CPU only",
    "buffers_that_share_memory": "a module that is moved gives every buffer memory of its own",
    "dropout_operator_that_keeps_everything": "returns its very operand on meta only",
    "dropout_operator_that_is_off": "returns its very operand on meta only",
    "fused_step_of_an_optimiser": "the operator has no kernel for meta",
}
# Nor programs that read a number out of a tensor, as a branch of eager does, or whose answer may be a refusal or the
# stock pipeline's.
PORTABLE = [
    p
    for p in PROGRAMS
    if p.name not in TRACED_OTHERWISE and p.kind != "control_flow" and not (p.scalars or p.handed_over or p.may_refuse)
]
# Eager reads a number out of a tensor to carry out a subscript, and on ``meta`` there is none.
READS_A_POSITION = frozenset({"position_from_tensor"})
SAMPLE = [p for p in (PORTABLE if LONG else PORTABLE[::6]) if p.name not in READS_A_POSITION]


def test_what_is_not_compared_exists() -> None:
    assert TRACED_OTHERWISE.keys() <= {p.name for p in PROGRAMS}
    assert len(PORTABLE) > 200


def _text(text: str) -> str:
    return re.sub(r"\bdevice=\w+", "device=...", text)


def _facts(report: Report) -> dict[str, Any]:
    """Everything of a report but its times, with devices left out of the graphs."""
    facts = report.to_json()
    del facts["seconds"]
    for snapshot in facts["snapshots"]:
        snapshot["text"] = _text(snapshot["text"])
    return facts


@pytest.mark.parametrize("program", PORTABLE, ids=str)
def test_report_is_the_same_on_another_device(program: Program) -> None:
    strategy = "v1" if len(program.name) % 2 else "v2"
    with torch.no_grad():
        options = {"strategy": strategy, "codegen": "eager"}
        here = reink.explain(program.build(), program.make_args(), **options)
        there = reink.explain(on_device(program.build(), "meta"), moved(program.make_args(), "meta"), **options)
    assert not here.fallback
    assert _facts(there) == _facts(here)


@pytest.mark.parametrize("program", SAMPLE, ids=str)
def test_functional_graph_is_the_same_on_another_device(program: Program) -> None:
    with torch.no_grad():
        here = reink.functionalize(program.build(), program.make_args())
        args = moved(program.make_args(), "meta")
        there = reink.functionalize(on_device(program.build(), "meta"), args)
        assert _text(str(there)) == _text(str(here))
        there(*args)


def _layouts(seen: Observed) -> tuple[object, ...]:
    """What is left to compare where there are no values."""
    return (
        seen.structure,
        seen.result_layouts,
        seen.shared_with_inputs,
        seen.shared_with_results,
        seen.is_input,
        seen.input_layouts,
    )


def _reports(program: Program, device: str) -> tuple[Observed, list[dict[str, Any]]]:
    """What a call of the compiled program leaves behind, and the reports of its graphs."""
    torch._dynamo.reset()
    fast = reink.compile(on_device(program.build(), device), codegen="eager", dynamic=program.dynamic)
    seen = observe(fast, moved(program.make_args(), device), program.grad_mode)
    return seen, [_facts(r) for r in fast.reports]


@pytest.mark.parametrize("program", SAMPLE, ids=str)
def test_compiled_program_is_the_same_on_another_device(program: Program) -> None:
    with no_fallback():
        here, reports_here = _reports(program, "cpu")
        there, reports_there = _reports(program, "meta")
    assert _layouts(there) == _layouts(here)
    assert reports_here
    assert reports_there == reports_here


# --- inputs without addresses ---------------------------------------------------------------------------


def _meta(*size: int) -> Tensor:
    return torch.empty(size, device="meta")


def test_inputs_without_addresses_overlap_where_their_storages_do() -> None:
    base = _meta(6)
    assert alias_pattern((_meta(6), _meta(6)), (0, 1)) == ()
    assert alias_pattern((base[:3], base[3:]), (0, 1)) == ()
    assert members_of(alias_pattern((_meta(6), base[:4], base[3:]), (0, 1))) == {1, 2}
    assert members_of(alias_pattern((base, torch.zeros(6), base), (0, 1))) == {0, 2}


def test_a_call_whose_inputs_share_otherwise_has_a_variant_of_its_own() -> None:
    def step(x: Tensor, y: Tensor) -> Tensor:
        x.add_(1)
        return y * 2

    fast = reink.compile(step, codegen="eager")
    base = _meta(6)
    with torch.no_grad():
        for args in ((_meta(4), _meta(4)), (base[:4], base[2:]), (_meta(4), _meta(4))):
            fast(*args)
    captured = [r.snapshots[0].text.splitlines()[0] for r in fast.reports]
    assert captured == ["inputs x: f32[4], y: f32[4]", "inputs base: f32[6]"]


def test_a_row_and_its_position_may_lie_on_another_device() -> None:
    def step(cache: Tensor, row: Tensor, at: Tensor) -> Tensor:
        cache[at] = row
        return cache * 2

    report = reink.explain(step, (_meta(5, 3), torch.ones(3), torch.tensor(2)))
    assert (report.bytes_cloned, report.fallback) == (0, "")


# --- on a GPU -------------------------------------------------------------------------------------------

on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")


@on_a_gpu
@pytest.mark.parametrize("program", SAMPLE, ids=str)
@pytest.mark.parametrize("passes", [(), (drop_clones,)], ids=["as written", "clones dropped"])
def test_program_equals_eager_on_a_gpu(program: Program, passes: tuple[Callable[..., None], ...]) -> None:
    with no_fallback():
        compare(
            on_device(program.build(), "cuda"),
            lambda: moved(program.make_args(), "cuda"),
            lambda fn: compiled(fn, passes=passes, dynamic=program.dynamic, fullgraph=program.fullgraph),
            grad_mode=program.grad_mode,
            state=program.state,
            reset=program.reset,
        )


@on_a_gpu
def test_row_of_the_host_goes_to_a_position_on_a_gpu() -> None:
    def step(cache: Tensor, row: Tensor, at: Tensor) -> Tensor:
        cache[at] = row
        return cache * 2

    def args() -> tuple[Tensor, ...]:
        return torch.zeros(5, 3, device="cuda"), torch.ones(3), torch.tensor(2)

    with torch.no_grad():
        compare(step, args, lambda fn: reink.functionalize(fn, args()))
