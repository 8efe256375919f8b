"""The commands on saved programs: what they print where, what they save, and their exit status."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from test_cli import assert_mistake, invoke
from torch import Tensor, nn

OPERATORS = """
import torch

library = torch.library.Library("saved", "FRAGMENT")
library.define("bump(Tensor(a!) into, Tensor x) -> ()")
library.impl("bump", lambda into, x: (into.add_(x), None)[1], "CompositeExplicitAutograd")
torch.library.register_fake("saved::bump", lambda into, x: None, lib=library)
"""


class Rows(nn.Module):
    """Writes two rows of a buffer, and returns a copy of two others."""

    cache: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(8, 4))

    def forward(self, x: Tensor) -> Tensor:
        self.cache[0].add_(x)
        self.cache[1].copy_(x)
        return self.cache[2:4].clone()


class Returns(nn.Module):
    """Returns a row of the buffer that it writes; decomposed, it no longer says that the two share memory."""

    cache: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(8, 4))

    def forward(self, x: Tensor) -> Tensor:
        self.cache.add_(x)
        return self.cache[0]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a program in three forms: written in place, decomposed, without example inputs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("REINK_TRACEBACK", raising=False)
    program = torch.export.export(Rows(), (torch.ones(4),))
    torch.export.save(program, "rows.pt2")
    torch.export.save(program.run_decompositions({}), "decomposed.pt2")
    program.example_inputs = None
    torch.export.save(program, "bare.pt2")
    return tmp_path


@pytest.mark.parametrize("file", ["rows.pt2", "decomposed.pt2", "bare.pt2"])
def test_explain_reads_a_saved_program(folder: Path, file: str) -> None:
    result = invoke("explain", file, "--strict", "--json", "report.json")
    assert result.exit_code == 0, result.output
    assert "Nothing is copied. All 2 writes happen in place." in result.stdout
    report = json.loads(Path("report.json").read_text())
    assert report["name"] == "Rows"
    assert [d["source"]["text"] for d in report["decisions"]] == ["self.cache[0].add_(x)", "self.cache[1].copy_(x)"]


def test_verify_runs_a_saved_program_on_its_example_inputs(folder: Path) -> None:
    result = invoke("verify", "rows.pt2")
    assert result.exit_code == 0, result.output
    assert "runs agree with eager" in result.stdout.splitlines()[-1]


def test_verify_needs_example_inputs(folder: Path) -> None:
    assert_mistake(invoke("verify", "bare.pt2"), "bad-target", "bare.pt2 has no example inputs")


@pytest.mark.parametrize("file", ["rows.pt2", "decomposed.pt2", "bare.pt2"])
def test_reinplace_saves_a_program_that_writes_in_place(folder: Path, file: str) -> None:
    before = Path(file).read_bytes()
    result = invoke("reinplace", file, "-o", "fast.pt2", "--strict")
    assert result.exit_code == 0, result.output
    assert "Nothing is copied. All 2 writes happen in place." in result.stdout
    assert "saved fast.pt2" in result.stderr
    assert Path(file).read_bytes() == before
    assert sorted(p.name for p in folder.iterdir()) == ["bare.pt2", "decomposed.pt2", "fast.pt2", "rows.pt2"]
    made = torch.export.load("fast.pt2")
    assert made.dialect == "TRAINING"
    assert torch.ops.aten.select_scatter.default not in [n.target for n in made.graph.nodes]
    assert torch.equal(made.module()(torch.ones(4)), torch.zeros(2, 4))


def test_reinplace_saves_its_report(folder: Path) -> None:
    result = invoke("reinplace", "rows.pt2", "-o", "fast.pt2", "--json", "-", "--html", "page.html")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["name"] == "Rows"
    assert Path("page.html").exists()
    assert Path("fast.pt2").exists()


def test_strict_saves_nothing_if_a_copy_is_left(folder: Path) -> None:
    torch.export.save(torch.export.export(Returns(), (torch.ones(4),)).run_decompositions({}), "row.pt2")
    result = invoke("reinplace", "row.pt2", "-o", "fast.pt2", "--strict")
    assert result.exit_code == 1, result.output
    assert "docs/errors.md#strict-copy" in result.stderr
    assert not Path("fast.pt2").exists()
    assert invoke("reinplace", "row.pt2", "-o", "fast.pt2").exit_code == 0
    assert Path("fast.pt2").exists()


def test_the_program_is_written_over_only_if_told(folder: Path) -> None:
    before = Path("rows.pt2").read_bytes()
    for name in ("rows.pt2", "../" + folder.name + "/rows.pt2"):
        assert_mistake(invoke("reinplace", "rows.pt2", "-o", name), "unknown-option", "is the program itself")
        assert_mistake(invoke("reinplace", "rows.pt2", "-o", "a.pt2", "--json", name), "unknown-option", "own file")
    assert Path("rows.pt2").read_bytes() == before
    result = invoke("reinplace", "rows.pt2", "-o", "rows.pt2", "--overwrite")
    assert result.exit_code == 0, result.output
    assert Path("rows.pt2").read_bytes() != before
    assert torch.export.load("rows.pt2").dialect == "TRAINING"


def test_a_program_that_cannot_be_saved_leaves_what_was_there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("fast.pt2").write_text("before")

    def save(program: object, file: Path) -> None:
        Path(file).write_text("half")
        raise OSError("no space left")

    monkeypatch.setattr(torch.export, "save", save)
    assert invoke("reinplace", "rows.pt2", "-o", "fast.pt2").exit_code == 2
    assert Path("fast.pt2").read_text() == "before"
    assert sorted(p.name for p in folder.iterdir()) == ["bare.pt2", "decomposed.pt2", "fast.pt2", "rows.pt2"]


MAKE = f"""
{OPERATORS}
class Calls(torch.nn.Module):
    def forward(self, x):
        torch.ops.saved.bump(x[0], x[1])
        return x * 2

program = torch.export.export(Calls(), (torch.ones(2, 4),))
torch.export.save(program, "calls.pt2")
torch.export.save(program.run_decompositions({{}}), "pure.pt2")
"""


def test_operators_of_a_saved_program_are_imported_first(folder: Path) -> None:
    subprocess.run([sys.executable, "-c", MAKE], cwd=folder, check=True, capture_output=True)
    (folder / "operators.py").write_text(OPERATORS)
    assert_mistake(invoke("explain", "calls.pt2"), "bad-target", "cannot read calls.pt2", "saved.bump", "--load FILE")
    assert_mistake(invoke("explain", "pure.pt2"), "unknown-call", "saved.bump", "--load FILE")
    for command in (["explain", "pure.pt2"], ["verify", "calls.pt2"], ["reinplace", "calls.pt2", "-o", "fast.pt2"]):
        result = invoke(*command, "--load", "operators.py")
        assert result.exit_code == 0, result.output
        sys.modules.pop("reink_target_operators").library._destroy()


MISTAKES = {
    "no file": (("explain", "row.pt2"), "not-found", "did you mean rows.pt2"),
    "no archive": (("explain", "text.pt2"), "bad-target", "cannot read text.pt2"),
    "a name": (("explain", "rows.pt2:Rows"), "bad-target", "has no NAME"),
    "no file to reinplace": (("reinplace", "row.pt2", "-o", "fast.pt2"), "not-found", "did you mean rows.pt2"),
    "another suffix": (("reinplace", "rows.pt2", "-o", "fast.zip"), "unknown-option", "ends in .pt2"),
    "no folder": (("reinplace", "rows.pt2", "-o", "none/fast.pt2"), "not-found", "no folder none"),
    "no strategy": (("reinplace", "rows.pt2", "-o", "fast.pt2", "--strategy", "v3"), "unknown-option", "v1, v2"),
    "one file for two": (("reinplace", "rows.pt2", "-o", "f.pt2", "--json", "f.pt2"), "unknown-option", "--output too"),
}


@pytest.mark.parametrize("kind", MISTAKES)
def test_a_mistake(folder: Path, kind: str) -> None:
    Path("text.pt2").write_text("no archive")
    arguments, code, part = MISTAKES[kind]
    assert_mistake(invoke(*arguments), code, part)


def test_help_has_an_example() -> None:
    result = invoke("reinplace", "--help")
    assert "reink reinplace" in result.stdout.split("Example", 1)[1]
