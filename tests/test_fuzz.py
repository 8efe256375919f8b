"""The fuzzer: its programs are defined and repeatable, it finds planted faults, and it finds none in reink."""

from __future__ import annotations

import json
import multiprocessing
import random
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.library import LONG
from typer.testing import CliRunner

from reink.api import compile_function
from reink.cli import app
from reink.core.torch_internals import pytree
from reink.fuzz.campaign import Campaign, Fault, _serve, run_campaign
from reink.fuzz.generate import generate, is_accepted
from reink.fuzz.injection import FAULTS
from reink.fuzz.prediction import wrong_prediction
from reink.fuzz.program import FuzzProgram, Input, Statement, Storage
from reink.fuzz.run import Outcome, Settings, run_program
from reink.fuzz.shrink import shrink, without
from reink.fuzz.shuffle import has_effect, random_order
from reink.fuzz.statements import RULES
from reink.judge import differences, observe
from reink.report import Verdict

PASSES = range(4000) if LONG else range(120)
COMPILED = range(300) if LONG else range(12)
SEED = 2


def sample(statements: tuple[Statement, ...], outputs: tuple[str, ...] = ("v0",)) -> FuzzProgram:
    storages = (Storage("float32", 32, 1), Storage("float32", 32, 101))
    inputs = (Input("a0", 0, "float32", (3, 4), (4, 1), 2), Input("a1", 1, "float32", (4,), (1,), 0))
    return FuzzProgram(0, 2, storages, inputs, statements, outputs)


LATE_READ = sample(
    (
        Statement("arithmetic", "v9 = a1 * 2", ("v9",)),
        Statement("select", "v0 = a0[1]", ("v0",)),
        Statement("bump", "ops.bump(v0)", (), ("v0",)),
        Statement("copy_in", "a1.copy_(v0)", (), ("a1",), ("v0",)),
        Statement("scale_in_place", "a0.mul_(2)", (), ("a0",)),
        Statement("arithmetic", "v2 = a1 + v9", ("v2",)),
    ),
    ("v0", "v2"),
)


# -- the programs ------------------------------------------------------------------------------------------


def test_a_program_is_the_same_each_time_and_eager_takes_it() -> None:
    for number in range(60):
        program = generate(SEED, number)
        assert program == generate(SEED, number)
        assert is_accepted(program)
        function, make_inputs = program.functions()
        first, second = observe(function, make_inputs()), observe(function, make_inputs())
        assert not differences(first, second), "the judge finds something between two plain runs"


def test_programs_meet_every_rule_and_every_layout() -> None:
    rules: Counter[str] = Counter()
    seen: Counter[str] = Counter()
    for number in range(600):
        program = generate(SEED, number, gradients=True)
        rules.update(program.rules)
        inputs = [t for t in program.functions()[1]() if t.numel()]
        for given in program.inputs:
            seen[f"{len(given.size)} dims"] += 1
            seen["offset"] += given.offset > 0
            seen["duplicate"] += bool(given.same_as)
            seen["other dtype"] += given.dtype != program.storages[given.storage].dtype
        seen["gradients"] += program.gradients
        seen["expanded"] += sum(0 in t.stride() for t in inputs)
        seen["not contiguous"] += sum(not t.is_contiguous() for t in inputs)
        seen["shared storage"] += len({t.untyped_storage().data_ptr() for t in inputs}) < len(inputs)
    assert set(RULES) == set(rules), set(RULES) - set(rules)
    assert len(seen) == 12, seen
    assert min(seen.values()) >= 10, seen


def test_every_input_element_has_its_own_value() -> None:
    for number in range(40):
        program = generate(SEED, number)
        for storage in program.storages:
            if storage.dtype not in ("bool", "uint8"):
                made = eval(storage.text(), {"torch": torch})
                assert len(set(made.tolist())) == storage.length


def test_inputs_apart_have_the_same_layout_and_share_nothing() -> None:
    for number in range(40):
        program = generate(SEED, number)
        here, there = program.functions()[1](), program.apart().functions()[1]()
        assert [(t.shape, t.stride(), t.dtype) for t in here] == [(t.shape, t.stride(), t.dtype) for t in there]
        assert len({t.untyped_storage()._cdata for t in there}) == len(there)


def test_a_saved_program_runs_by_itself(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(LATE_READ.file("late read"), encoding="utf-8")
    assert "reink" not in path.read_text().replace("reink_fuzz", "").replace('"reink"', "")
    done = subprocess.run([sys.executable, str(path), "eager"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "equal"), done.stderr


# -- faults are found, made small, and grouped -------------------------------------------------------------


def test_a_planted_fault_is_found_and_made_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted compiler returns wrong numbers whenever the program writes the second row of its first input."""

    def planted(function: Any, args: Any, *more: Any, **how: Any) -> Any:
        def wrong(*inputs: Any) -> Any:
            before = inputs[0][1].clone()
            results = function(*inputs)
            unchanged = torch.equal(before, inputs[0][1])
            return results if unchanged else pytree.tree_map(lambda r: r + 1, results)

        return wrong

    monkeypatch.setattr("reink.fuzz.run.compile_function", planted)
    program = replace(LATE_READ, number=1)  # one whose inputs are not given away
    outcome = run_program(program, Settings())
    assert outcome.kind == "aliasing" and outcome.is_fault
    small, found = shrink(program, outcome, Settings())
    assert found.key == outcome.key
    assert len(small.statements) == 1
    assert len(small.inputs) == 1
    assert small.inputs[0].offset == 0


def test_a_process_of_a_campaign_hears_of_a_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a line of reink's log, while what PyTorch logs is kept quiet."""
    monkeypatch.setattr("reink.pipeline.check_ownership", lambda *args: Verdict("ownership", False, ("no",)))
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=_serve, args=(theirs, Settings(), SEED), daemon=True)
    process.start()
    ours.send(("run", 1, None))
    assert ours.poll(60)
    outcome, _ = ours.recv()
    process.kill()
    assert outcome.kind == "fallback", outcome


def test_dropping_a_statement_drops_what_needs_it() -> None:
    smaller = without(LATE_READ, LATE_READ.statements[1:2])
    assert smaller is not None
    assert [s.text for s in smaller.statements] == ["v9 = a1 * 2", "a0.mul_(2)", "v2 = a1 + v9"]
    assert smaller.outputs == ("v2",)
    assert without(LATE_READ, ()) is None


def test_a_crash_a_refusal_and_a_fallback_have_their_own_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    metadata = sample((Statement("other_storage", "a0.set_(a0 + 1)"),), ("a0",))
    refused = run_program(metadata, Settings())
    assert (refused.kind, refused.cause, refused.is_fault) == ("refused", "metadata-mutation", False)

    def crash(*args: Any, **how: Any) -> Any:
        raise KeyError("v12 is not in [1, 2]")

    with monkeypatch.context() as patched:
        patched.setattr("reink.fuzz.run.compile_function", crash)
        crashed = run_program(LATE_READ, Settings())
    assert crashed.kind == "crash" and crashed.cause.startswith("KeyError")
    with monkeypatch.context() as patched:
        patched.setattr("reink.pipeline.check_ownership", lambda *args: Verdict("ownership", False, ("no",)))
        fallen = run_program(LATE_READ, Settings())
    assert fallen.kind == "fallback" and fallen.is_fault


def test_a_process_that_dies_costs_one_program() -> None:
    campaign = run_campaign(Settings("no such back end"), seed=SEED, programs=3, jobs=1)
    assert campaign.programs == 3
    assert set(campaign.by_kind()) == {"crash"}
    assert len(campaign.groups()) == 1


# -- the command -------------------------------------------------------------------------------------------


def fuzz_command(*words: str) -> Any:
    return CliRunner().invoke(app, ["fuzz", *words])


def test_the_command_counts_and_says_so_in_one_line(tmp_path: Path) -> None:
    done = fuzz_command("--programs", "6", "--jobs", "1", "--inject", "2", "--json", str(tmp_path / "figures.json"))
    assert done.exit_code == 0, done.output
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures["programs"] == 6 and figures["faults"] == [] and figures["injected"]["caught"] > 0
    words = " ".join(done.output.split())
    assert "no fault in 6 programs of seed 0 against passes" in words
    assert "of them caught before the program ran (100 %)" in words


def test_a_fault_of_reink_is_shown_saved_and_the_answer_is_no(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = replace(LATE_READ, statements=LATE_READ.statements[:2], outputs=("v0",))
    wrong = Outcome("value", detail="  result 0: eager 1\n            got   2")

    def run(settings: Settings, *, seed: int, **given: Any) -> Campaign:
        campaign = Campaign(seed, settings, programs=3, seconds=1.0)
        campaign.counts.update({("ok", "", False): 2, ("value", "", False): 1})
        campaign.faults.append(Fault(2, wrong, small))
        return campaign

    monkeypatch.setattr("reink.fuzz.campaign.run_campaign", run)
    for against, status in (("reink", 1), ("aot_eager", 0)):
        done = fuzz_command("--against", against, "--save", str(tmp_path))
        assert done.exit_code == status, done.output
        assert "1 x value: arithmetic, select" in done.output
        assert "v0 = a0[1]" in done.output
        saved = (tmp_path / f"value_{against}_0_2.py").read_text()
        assert "v0 = a0[1]" in saved and "eager 1" in saved


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--against", "nvfuser"), "no back end 'nvfuser'"),
        (("--against", "reink", "--inject", "1"), "--inject needs --against passes"),
        (("--codegen", "inductor"), "needs --against reink"),
        (("--against", "reink", "--codegen", "llvm"), "no code generator 'llvm'"),
        (("--json", "/nowhere/at/all.json"), "no folder /nowhere/at"),
    ],
)
def test_a_mistake_is_told_with_a_code(words: tuple[str, ...], said: str) -> None:
    done = fuzz_command(*words)
    assert done.exit_code == 2
    assert said in done.output and "code" in done.output


# -- reink -------------------------------------------------------------------------------------------------


def _explained(campaign: Campaign) -> str:
    return "\n".join(f"{f.outcome.kind} {f.number}\n{f.program.text()}\n{f.outcome.detail}" for f in campaign.faults)


def test_random_programs_through_the_passes() -> None:
    """Shuffled graphs, random decisions and both strategies among them; and no injected fault escapes."""
    campaign = run_campaign(Settings(inject=2), seed=SEED, programs=len(PASSES), jobs=2)
    assert campaign.programs == len(PASSES)
    assert not campaign.fault_count, _explained(campaign)
    assert campaign.by_kind()["ok"] > 0.8 * len(PASSES)
    assert campaign.tally.caught > 0.5 * len(PASSES)


@pytest.mark.parametrize("settings", [Settings("reink", codegen="inductor"), Settings("in_inductor")], ids=str)
def test_random_programs_with_generated_code(settings: Settings) -> None:
    """And stock repaired: a fault that stock has by itself is told as such."""
    count = 60 if LONG else 6
    campaign = run_campaign(settings, seed=SEED, programs=count, jobs=2)
    assert campaign.programs == count
    assert not campaign.fault_count, _explained(campaign)
    assert campaign.by_kind()["ok"] > 0


def test_random_programs_through_torch_compile() -> None:
    campaign = run_campaign(Settings("reink"), seed=SEED, programs=len(COMPILED), jobs=2)
    assert not campaign.fault_count, _explained(campaign)
    assert campaign.by_kind()["ok"] > 0.5 * len(COMPILED)


def test_a_branch_is_captured_without_dynamo_and_writes_what_lies_around_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also a tensor in a list, and one that is an operand as well; the program is compared with eager."""
    monkeypatch.setattr(torch, "cond", None)
    monkeypatch.setattr(torch, "while_loop", None)
    text = (
        "v0, v1 = a0[0], list(a0[1:].unbind())\n"
        "def yes(t):\n    v0.add_(t)\n    v1[0].mul_(2)\n    return v0 + v1[1]\n"
        "v2 = branch(a1.sum() > 3, yes, lambda t: t - v0, a1)\n"
        "def body(i, t):\n    v1[1].add_(i)\n    return i + 1, t + v0\n"
        "_, v3 = loop(lambda i, t: i < 3, body, torch.tensor(0), v2.clone())"
    )
    program = sample((Statement("control", text, ("v0", "v1", "v2", "v3")),), ("v0", "v2", "v3"))
    outcome = run_program(program, Settings())
    assert outcome.kind == "ok", outcome.detail


def test_a_shuffled_graph_keeps_the_order_of_random_numbers_that_are_written() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        x.t().bernoulli_()
        return torch.rand(3)

    fast = compile_function(program, (torch.zeros(3, 4),), {"codegen": "eager"})
    graph = fast.compiled.functional.graph
    drawing = [n for n in graph.nodes if n.op == "call_function" and has_effect(n)]
    assert len(drawing) == 2 and "reink_ordered" in drawing[0].meta
    assert all([n for n in random_order(graph, random.Random(k)) if n in drawing] == drawing for k in range(20))


def test_every_kind_of_fault_is_injected_and_caught() -> None:
    assert len(FAULTS) >= 9
    caught = [run_program(generate(SEED, n), Settings(inject=12)) for n in (0, 2, 4)]
    assert all(o.kind in ("ok", "refused") for o in caught), [o.detail for o in caught if o.is_fault]


def test_an_outcome_of_stock_is_told_apart() -> None:
    assert Outcome("value", stock=True).is_fault
    assert not Outcome("refused", "metadata-mutation").is_fault


def test_layouts_that_torch_does_not_foresee_are_told_from_faults() -> None:
    """`expand` of one number to one element: eager gives the stride 0, the fake kernel 1."""

    def misjudged(x: torch.Tensor) -> torch.Tensor:
        return x.expand((1,)) + 1

    def foreseen(x: torch.Tensor) -> torch.Tensor:
        return x.view(1).mul_(2).t()

    assert wrong_prediction(misjudged, (torch.tensor(3.0),)).startswith("aten.expand.default: foreseen")
    assert wrong_prediction(foreseen, (torch.tensor(3.0),)) == ""
