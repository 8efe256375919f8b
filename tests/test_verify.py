"""`reink.verify` says yes to what is right, no to what is wrong, and what it could not look at; on copies only."""

from __future__ import annotations

import importlib
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner, Result

import reink.cli
from reink.errors import ReinkError
from reink.report import Verdict
from reink.verification import variants as derived
from reink.verification.answer import Run, Verification
from reink.verification.copies import Case

reink_: Any = importlib.import_module("reink")


def verify(fn: Any, *args: Any, **options: Any) -> Verification:
    answer: Verification = reink_.verify(fn, args, **options)
    return answer


def run_named(answer: Verification, name: str) -> Run:
    return next(r for r in answer.runs if r.name == name)


def outcomes(answer: Verification) -> dict[str, str]:
    return {r.name: r.outcome for r in answer.runs}


# ---- programs ------------------------------------------------------------------------------------------


def step(cache: Tensor, rows: Tensor) -> Tensor:
    cache[0].add_(rows[0])
    cache.reshape(-1).mul_(2)
    return cache + rows


class Running(torch.nn.Module):
    """A running total in a buffer, and parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(3))
        self.linear = torch.nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        total = self.get_buffer("total")
        total.add_(x)
        result: Tensor = self.linear(total)
        return result


@torch.library.custom_op("reink_verify::sneaky", mutates_args=())
def sneaky(x: Tensor) -> Tensor:
    """Says that it only reads `x`, and writes it."""
    x.add_(1)
    return x.sum()


@sneaky.register_fake
def _(x: Tensor) -> Tensor:
    return x.new_empty(())


def trusts_sneaky(x: Tensor) -> Tensor:
    sneaky(x)  # only reads and has no use: left out
    return x * 2


TOTAL = torch.zeros(3)


def adds_to_total(x: Tensor) -> Tensor:
    TOTAL.add_(x)
    return TOTAL * 2


def calls_adds_to_total(x: Tensor) -> Tensor:
    return adds_to_total(x) + 1


def wrong_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the compiled side multiply by 3 where the program says 2."""
    dynamo = importlib.import_module("reink.backends.dynamo")
    capture = dynamo.capture_graph

    def wrong(*given: Any, **options: Any) -> Any:
        program = capture(*given, **options)
        for node in program.graph.nodes:
            if node.op == "call_function" and "mul_" in str(node.target):
                node.args = (node.args[0], 3)
        return program

    monkeypatch.setattr(dynamo, "capture_graph", wrong)


# ---- yes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["v1", "v2"])
def test_a_right_program_is_verified_on_every_kind_of_input(strategy: str) -> None:
    answer = verify(step, torch.zeros(4, 3), torch.ones(4, 3), strategy=strategy)
    assert answer, str(answer)
    assert outcomes(answer) == {
        "as given": "ok",
        "called again with fresh values": "ok",
        "inside larger storages": "ok",
        "transposed in memory": "ok",
        "gaps between elements": "ok",
        "size 4 made 5": "ok",
        "size 3 made 4": "ok",
        "cache, rows the same tensor": "ok",
        "cache, rows neighbours in a storage": "ok",
        "cache, rows interleaved in a storage": "ok",
        "cache, rows overlapping in part": "ok",
        "alias patterns in turn": "ok",
    }
    assert all(r.graphs for r in answer.runs), "a run that compiled nothing compares eager with eager"
    assert [(v.check, v.ok) for v in answer.checks()] == [("well-formed", True), ("ownership", True), ("values", True)]
    assert answer.verdict().startswith("yes: 12 runs agree with eager; ")
    assert answer.strategy == strategy


def test_a_module_with_buffers_starts_from_one_state() -> None:
    module = Running()
    answer = verify(module, torch.ones(3))
    assert answer, str(answer)
    assert torch.equal(module.get_buffer("total"), torch.zeros(3))


def test_what_a_function_closes_over_is_watched_and_put_back() -> None:
    module = Running()
    for fn in (adds_to_total, calls_adds_to_total, lambda x: module(x) * 2):
        answer = verify(fn, torch.ones(3))
        assert answer, str(answer)
    assert torch.equal(TOTAL, torch.zeros(3))
    assert torch.equal(module.get_buffer("total"), torch.zeros(3))


def test_the_inputs_stay_as_they_are() -> None:
    whole = torch.arange(24.0)
    cache, row = whole[2:14].view(4, 3), whole[20:23]
    before, version = whole.clone(), whole._version
    answer = verify(lambda cache, row: cache.add_(row), cache, row)
    assert answer, str(answer)
    assert torch.equal(whole, before)
    assert whole._version == version
    assert outcomes(answer)["other strides"] == "skipped"


def test_random_state_is_left_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    assert verify(lambda x: x.add_(torch.rand(3)), torch.ones(3))
    assert torch.equal(torch.rand(3), expected)


def test_keyword_arguments_and_nests() -> None:
    def nested(given: dict[str, list[Tensor]], *, scale: Tensor) -> None:
        given["a"][1].mul_(scale)

    answer = verify(nested, {"a": [torch.ones(2), torch.ones(3)]}, kwargs={"scale": torch.ones(3) * 2})
    assert answer, str(answer)
    assert "given_a_1, scale the same tensor" in outcomes(answer)


# ---- skipped: eager does not accept it -----------------------------------------------------------------


def test_inputs_that_eager_refuses_are_skipped_with_its_reason() -> None:
    answer = verify(lambda x, y: x.add_(y), torch.zeros(3), torch.ones(3))
    run = run_named(answer, "x, y overlapping in part")
    assert run.outcome == "skipped"
    assert "eager raises RuntimeError: unsupported operation" in run.why
    assert answer, str(answer)
    assert answer.verdict().startswith("yes: ")
    assert "(1 skipped)" in answer.verdict()


def test_a_program_without_one_answer_is_not_verified() -> None:
    drawn: list[float] = []

    def counts(x: Tensor) -> Tensor:
        drawn.append(1.0)
        return x.add_(len(drawn))

    answer = verify(counts, torch.ones(3))
    assert not answer
    assert answer.verdict() == "not verified: as given: eager gives another answer each time"


def test_pairs_that_are_left_out_are_said() -> None:
    answer = verify(lambda *xs: [x.add_(1) for x in xs], *(torch.ones(2) for _ in range(3)), most_pairs=1)
    assert answer, str(answer)
    assert run_named(answer, "other pairs of inputs").why == "1 of 3 pairs were tried"


# ---- no ------------------------------------------------------------------------------------------------


def test_a_wrong_number_is_found_with_its_element_and_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong_capture(monkeypatch)
    answer = verify(step, torch.ones(4, 3), torch.ones(4, 3))
    assert not answer
    first = answer.first_difference
    assert first is answer.runs[0]
    assert first.why == "result 0[0, 0]: eager 5.0, reink 7.0 (12 of 12 elements differ)"
    assert [line.text for line in first.lines] == ["cache[0].add_(rows[0])", "cache.reshape(-1).mul_(2)"]
    assert all(line.file == __file__ for line in first.lines)
    assert answer.verdict() == f"no: as given: differs from eager: {first.why}"
    assert "written at test_verify.py:" in str(answer)
    assert "order inside an operator" in run_named(answer, "cache, rows overlapping in part").why


def test_a_wrong_write_is_found_in_the_memory_of_the_input(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong_capture(monkeypatch)

    def scale(x: Tensor, y: Tensor) -> None:
        x.mul_(2)
        y[1:].mul_(2)

    answer = verify(scale, torch.zeros(3), torch.tensor([1.0, 1.0, 0.0]))
    first = answer.runs[0]
    assert first.why == "y[1]: eager 2.0, reink 3.0 (1 of 3 elements differ)"
    assert [line.text for line in first.lines] == ["y[1:].mul_(2)"]


def test_an_operator_that_lies_about_what_it_writes() -> None:
    answer = verify(trusts_sneaky, torch.ones(3))
    assert not answer
    assert answer.runs[0].outcome == "differs"
    assert answer.runs[0].why == "result 0[0]: eager 4.0, reink 2.0 (3 of 3 elements differ)"


def test_a_refusal_is_shown_with_its_code_and_ends_the_runs() -> None:
    def fills_gaps(x: Tensor) -> Tensor:
        gapped = x.new_empty_strided((2, 2), (4, 1))
        gapped.as_strided((6,), (1,)).fill_(2)
        return gapped

    answer = verify(fills_gaps, torch.ones(9))
    assert not answer
    assert [r.outcome for r in answer.runs] == ["refused"]
    assert "docs/errors.md#view-outside-input" in str(answer)
    assert answer.verdict().startswith("no: as given: refused: ")


# ---- right, but not verified ---------------------------------------------------------------------------


def test_a_graph_for_the_stock_pipeline_is_named() -> None:
    answer = verify(Running(), torch.ones(3), grad_mode="grad")
    assert not answer
    assert {r.outcome for r in answer.compared} == {"ok"}
    assert "handed to the stock pipeline" in answer.verdict()
    assert "[needs-gradient]: not verified by reink" in answer.verdict()


def test_a_fallback_is_right_and_not_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = importlib.import_module("reink.pipeline")
    monkeypatch.setattr(pipeline, "check_ownership", lambda *given: Verdict("ownership", False, ("a stale read",)))
    answer = verify(step, torch.ones(4, 3), torch.ones(4, 3), most_pairs=0)
    assert not answer
    assert {r.outcome for r in answer.compared} == {"ok"}
    assert "ownership check failed: a stale read" in answer.verdict()
    assert [(v.check, v.ok) for v in answer.checks()] == [("well-formed", True), ("ownership", False), ("values", True)]


def test_more_alias_patterns_than_variants_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.import_module("reink.backends.runtime"), "MOST_VARIANTS", 0)
    answer = verify(step, torch.ones(4, 3), torch.ones(4, 3), most_pairs=0)
    assert not answer
    assert "captured program runs as it stands" in answer.verdict()


def test_a_program_without_a_graph_is_not_verified() -> None:
    answer = verify(lambda x: x, torch.ones(3))
    assert not answer
    assert "no graph was compiled" in answer.verdict()


def test_listening_prints_nothing_new(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("reink")
    level, filters = logger.level, list(logger.filters)
    with caplog.at_level(logging.WARNING, "reink"):
        assert not verify(Running(), torch.ones(3), grad_mode="grad")
    assert caplog.records == []
    assert (logger.level, logger.filters) == (level, filters)


# ---- mistakes ------------------------------------------------------------------------------------------


def fails(x: Tensor) -> Tensor:
    return x.view(7)


MISTAKES: dict[str, tuple[Callable[[], object], str]] = {
    "raises in eager": (lambda: verify(fails, torch.ones(3)), "not-a-tensor-program"),
    "no function": (lambda: verify(3, torch.ones(3)), "not-a-tensor-program"),
    "no tensor": (lambda: verify(fails, 3), "not-a-tensor-program"),
    "sparse": (lambda: verify(torch.sum, torch.eye(2).to_sparse()), "not-a-tensor-program"),
    "strategy": (lambda: verify(fails, torch.ones(3), strategy="v3"), "unknown-option"),
    "grad mode": (lambda: verify(fails, torch.ones(3), grad_mode="on"), "unknown-option"),
    "pairs": (lambda: verify(fails, torch.ones(3), most_pairs=-1), "unknown-option"),
    "tolerance": (lambda: verify(fails, torch.ones(3), tolerance="no"), "unknown-option"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_has_a_code(name: str) -> None:
    attempt, code = MISTAKES[name]
    with pytest.raises(ReinkError) as caught:
        attempt()
    assert caught.value.code == code


def test_what_raises_in_eager_has_its_line() -> None:
    with pytest.raises(ReinkError) as caught:
        verify(fails, torch.ones(3))
    assert "in fails    return x.view(7)" in caught.value.where


# ---- the derived inputs --------------------------------------------------------------------------------


def test_copies_keep_layout_offsets_and_sharing() -> None:
    base = torch.arange(20.0)
    weight = torch.nn.Parameter(torch.ones(2))
    leaves = (base[3:15].view(3, 4).t(), base[5:6].expand(3), base.to(torch.complex64).conj(), weight, 7)
    _, made = Case(step, leaves, None, ()).copies()
    for old, new in zip(leaves[:4], made[:4], strict=True):
        assert isinstance(old, Tensor)
        assert torch.equal(old, new)
        assert (old.stride(), old.storage_offset(), old.is_conj()) == (
            new.stride(),
            new.storage_offset(),
            new.is_conj(),
        )
        assert old.data_ptr() != new.data_ptr()
    assert made[0].untyped_storage().data_ptr() == made[1].untyped_storage().data_ptr()
    assert isinstance(made[3], torch.nn.Parameter)
    assert made[4] == 7


EDITS: dict[str, derived.Edit] = {
    "guarded": derived.guarded,
    "transposed": derived.transposed,
    "gapped": derived.gapped,
    "neighbours": derived.neighbours(0, 1),
    "interleaved": derived.interleaved(0, 1),
}


@pytest.mark.parametrize("name", EDITS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.int8, torch.complex128])
def test_an_edit_of_the_layout_keeps_the_values(name: str, dtype: torch.dtype) -> None:
    leaves = [(torch.arange(6) % k).view(2, 3).to(dtype) for k in (2, 3)]
    made = EDITS[name](list(leaves))
    for old, new in zip(leaves, made, strict=True):
        assert torch.equal(old, new)
        assert (old.stride(), old.storage_offset(), old.data_ptr()) != (
            new.stride(),
            new.storage_offset(),
            new.data_ptr(),
        )


def test_an_edited_tensor_can_be_written_with_gradients_on() -> None:
    for tensor in derived.gapped([torch.ones(3)]) + derived.neighbours(0, 1)([torch.ones(3), torch.ones(3)]):
        assert torch.equal(tensor.add_(1), torch.full((3,), 2.0))


def test_other_sizes_keep_the_order_in_memory() -> None:
    (made,) = derived.grown(3)([torch.arange(6.0).view(2, 3).t()])
    assert torch.equal(made, torch.tensor([[0.0, 3.0], [1.0, 4.0], [2.0, 5.0], [0.0, 3.0]]))
    assert made.stride() == (1, 4)


def test_pairs_with_a_written_input_come_first() -> None:
    leaves = [torch.ones(2), torch.ones(2), torch.ones(2), torch.ones(3), 4]
    assert derived.pairs(leaves, [2]) == [(0, 2), (1, 2), (0, 1)]


# ---- the command line ----------------------------------------------------------------------------------

FILE = """
import torch

def step(x):
    print("printed by step")
    x.mul_(2)
    return x + 1

def right():
    return step, (torch.ones(3),)

def stock():
    return torch.nn.Linear(2, 2), (torch.ones(2),)

def wrong_inputs():
    return torch.relu_, ()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "programs.py").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("REINK_TRACEBACK", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(reink.cli.app, ["verify", *arguments], prog_name="reink")


def test_the_command_says_yes(folder: Path) -> None:
    result = invoke("programs.py:right", "--strategy", "v1")
    assert result.exit_code == 0, result.output
    for text in ("as given", "gaps between elements", "check ownership: ok", "strategy v1"):
        assert text in result.stdout
    assert result.stdout.splitlines()[-1].startswith("yes: ")
    assert "printed by step" not in result.stdout


def test_the_command_says_no(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong_capture(monkeypatch)
    result = invoke("programs.py:right", "--json", "answer.json")
    assert result.exit_code == 1, result.output
    assert "written at programs.py:6" in result.stdout
    assert result.stdout.splitlines()[-2].startswith("no: as given: differs from eager: result 0[0]")
    saved = json.loads(Path("answer.json").read_text())
    assert (saved["ok"], saved["runs"][0]["outcome"]) == (False, "differs")
    assert saved["runs"][0]["lines"][0]["line"] == 6


def test_the_command_names_what_it_did_not_verify(folder: Path) -> None:
    result = invoke("programs.py:stock", "--grad-mode", "grad", "--json", "-")
    assert result.exit_code == 1, result.output
    saved = json.loads(result.stdout)
    assert "handed to the stock pipeline" in saved["verdict"]
    assert Verification.__name__ not in result.stderr


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["programs.py:wrong_inputs"], "not-a-tensor-program"),
        (["programs.py:missing"], "not-found"),
        (["model.pt2"], "not-found"),
        (["programs.py:right", "--strategy", "v3"], "unknown-option"),
        (["programs.py:right", "--grad-mode", "off"], "unknown-option"),
        (["programs.py:right", "--json", "nowhere/answer.json"], "not-found"),
    ],
)
def test_a_mistake_on_the_command_line(folder: Path, arguments: list[str], code: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2, result.output
    assert f"docs/errors.md#{code}" in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


def test_help_of_the_command_has_an_example() -> None:
    assert "reink verify" in invoke("--help").stdout.split("Example", 1)[1]
