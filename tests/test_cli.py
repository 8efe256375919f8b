"""The command line as a user meets it: what it prints where, and its exit status."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import reink.cli
from reink.errors import CODES, ReinkError
from reink.report import Conflict, Decision, Outcome, Report, Snapshot, Source

PROGRAMS = """
import ctypes
print("printed at import")

def view_program(x):
    y = x.view(2, 8)
    y.add_(1)
    y.relu_()
    return x * 2

def example():
    import torch
    return view_program, (torch.zeros(4, 4),)

def plain():
    print("printed by plain")
    return view_program, ("x",), {"scale": 2}

def native():
    ctypes.CDLL(None).puts(b"printed by C")
    return view_program, ("x",)

def needs_more(x):
    return view_program, (x,)

def no_tuple():
    return view_program, 3

def one_value():
    return view_program

def no_function():
    return 1, (2,)

def odd_kwargs():
    return view_program, (), [1]

def fails():
    return {}["missing"]

def leaves():
    raise SystemExit(0)

number = 3
"""

Explain = Callable[..., Report]


def decision(number: int, copied: int | None) -> Decision:
    source = Source("/home/me/model.py", 7, "view_program", "y.add_(1)")
    conflict = Conflict("mul", "x", "add_", Source("/home/me/model.py", 9)) if copied != 0 else None
    outcome: Outcome = "saved" if copied != 0 else "in place"
    return Decision(
        number,
        "aten.add_.Tensor",
        "self",
        outcome,
        copied,
        64,
        "4*s0 bytes",
        "read later",
        "read first",
        "add_",
        source,
        conflict,
    )


def a_report(copied: int | None = 0) -> Report:
    return Report(
        name="view_program",
        snapshots=[Snapshot("capture", "mutable", "add_(y, 1)", 1)],
        decisions=[decision(1, 0), decision(2, copied)],
    )


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder with PROGRAMS in programs.py; imports made from it are forgotten after."""
    (tmp_path / "programs.py").write_text(PROGRAMS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delenv("REINK_TRACEBACK", raising=False)
    return tmp_path


@pytest.fixture
def explained(monkeypatch: pytest.MonkeyPatch) -> Callable[[Explain], None]:
    """Put another function in the place of `reink.explain`."""

    def put(explain: Explain) -> None:
        monkeypatch.setattr(reink.cli.explain, "_explain", explain)

    put(lambda fn, args, kwargs, **options: a_report())
    return put


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(reink.cli.app, list(arguments), prog_name="reink")


def assert_mistake(result: Result, code: str, *parts: str) -> None:
    """Status 2, one message of that code on standard error, nothing on standard output, no traceback."""
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert f"docs/errors.md#{code}" in result.stderr
    assert "Traceback" not in result.stderr
    for part in parts:
        assert part in result.stderr


# explain


def test_explain_prints_the_report(folder: Path, explained: object) -> None:
    result = invoke("explain", "programs.py:plain")
    assert result.exit_code == 0, result.output
    assert "Nothing is copied. All 2 writes happen in place." in result.stdout
    assert "captured" in result.stdout


def test_explain_takes_a_module(folder: Path, explained: object, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "reink_fuzz_module.py").write_text(PROGRAMS)
    result = invoke("explain", "reink_fuzz_module:plain")
    monkeypatch.delitem(sys.modules, "reink_fuzz_module")
    assert result.exit_code == 0, result.output


def test_a_file_finds_its_neighbours(folder: Path, explained: object, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = folder / "inner"
    inner.mkdir()
    (inner / "reink_fuzz_neighbour.py").write_text(PROGRAMS)
    (inner / "main.py").write_text("from reink_fuzz_neighbour import plain\n")
    result = invoke("explain", "inner/main.py:plain")
    monkeypatch.delitem(sys.modules, "reink_fuzz_neighbour")
    assert result.exit_code == 0, result.output


def test_explain_hands_over_the_program(folder: Path, explained: Callable[[Explain], None]) -> None:
    seen: list[tuple[object, ...]] = []

    def explain(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], **options: str) -> Report:
        seen.append((fn.__name__, args, kwargs, options))
        return a_report()

    explained(explain)
    assert invoke("explain", "programs.py:plain", "--strategy", "v1").exit_code == 0
    assert invoke("explain", "programs.py:native", "--codegen", "eager").exit_code == 0
    assert seen == [
        ("view_program", ("x",), {"scale": 2}, {"strategy": "v1", "codegen": "inductor"}),
        ("view_program", ("x",), {}, {"strategy": "v2", "codegen": "eager"}),
    ]


def test_programs_can_be_left_out(folder: Path, explained: object) -> None:
    assert "captured" not in invoke("explain", "programs.py:plain", "--no-programs").stdout


@pytest.mark.parametrize(("copied", "status"), [(0, 0), (256, 1), (None, 1)])
def test_strict_says_no_to_a_copy(
    folder: Path, explained: Callable[[Explain], None], copied: int | None, status: int
) -> None:
    explained(lambda fn, args, kwargs, **options: a_report(copied))
    assert invoke("explain", "programs.py:plain").exit_code == 0
    result = invoke("explain", "programs.py:plain", "--strict")
    assert result.exit_code == status
    assert ("docs/errors.md#strict-copy" in result.stderr) == bool(status)
    assert "view_program" in result.stdout


# JSON


def test_json_to_standard_output_is_alone_there(folder: Path, explained: Callable[[Explain], None]) -> None:
    def explain(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], **options: str) -> Report:
        print("printed while it compiles")
        return a_report(256)

    explained(explain)
    result = invoke("explain", "programs.py:plain", "--json", "-", "--strict")
    assert Report.from_json(json.loads(result.stdout)) == a_report(256)
    assert result.exit_code == 1
    for text in ("printed at import", "printed by plain", "printed while it compiles"):
        assert text in result.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="the C library has another name there")
def test_what_c_prints_goes_to_standard_error_too(folder: Path) -> None:
    code = (
        "import reink.cli, reink.report; "
        "reink.cli.explain._explain = lambda *given, **options: reink.report.Report(name='from C'); reink.cli.main()"
    )
    arguments = ["explain", "programs.py:native", "--json", "-"]
    result = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert json.loads(result.stdout)["name"] == "from C"
    assert "printed by C" in result.stderr


def test_json_to_a_file_that_show_reads(folder: Path, explained: Callable[[Explain], None]) -> None:
    explained(lambda fn, args, kwargs, **options: a_report(256))
    result = invoke("explain", "programs.py:plain", "--json", "report.json")
    assert result.exit_code == 0
    assert "reink show report.json" in result.stderr
    assert Report.load("report.json") == a_report(256)
    shown = invoke("show", "report.json")
    assert shown.exit_code == 0
    assert shown.stdout == result.stdout


def test_json_where_no_file_can_be(folder: Path, explained: object) -> None:
    assert_mistake(invoke("explain", "programs.py:plain", "--json", "missing/r.json"), "not-found", "missing")
    result = invoke("explain", "programs.py:plain", "--json", ".")
    assert result.exit_code == 2
    assert "docs/errors.md#unknown-option" in result.stderr


# mistakes in the target


MISTAKES = {
    "programs.py:plian": ("not-found", "did you mean plain?"),
    "programs.py:zzz": ("not-found", "there are: example"),
    "program.py:plain": ("not-found", "did you mean programs.py?"),
    "nowhere/programs.py:plain": ("not-found", "nowhere/programs.py"),
    "reink_programz:plain": ("not-found", "no module reink_programz"),
    "programs.py": ("bad-target", "give programs.py:NAME"),
    "programs.py:": ("bad-target", "no NAME"),
    ":plain": ("bad-target", "no NAME"),
    "": ("bad-target", "no NAME"),
    "model.pt2": ("not-found", "no file model.pt2"),
    "model.pt2:plain": ("bad-target", "which has no NAME"),
    "programs.py:number": ("bad-target", "is a int"),
    "programs.py:needs_more": ("bad-target", "needs arguments"),
    "programs.py:no_tuple": ("bad-target", "return fn, (arg,)"),
    "programs.py:one_value": ("bad-target", "returned a function"),
    "programs.py:no_function": ("bad-target", "its fn is a int"),
    "programs.py:odd_kwargs": ("bad-target", "its kwargs are not a dict"),
    "programs.py:fails": ("bad-target", "KeyError: 'missing'"),
    "programs.py:leaves": ("bad-target", "SystemExit: 0"),
}


@pytest.mark.parametrize("target", MISTAKES)
def test_a_mistake_in_the_target(folder: Path, explained: object, target: str) -> None:
    code, part = MISTAKES[target]
    assert_mistake(invoke("explain", target), code, part)


def test_what_the_callable_raised_has_its_line(folder: Path, explained: object) -> None:
    line = PROGRAMS.splitlines().index('    return {}["missing"]') + 1
    assert_mistake(invoke("explain", "programs.py:fails"), "bad-target", f"programs.py:{line} in fails")


BROKEN = {
    "division": ("x = 1\ny = x / 0\n", "ZeroDivisionError", ":2"),
    "syntax": ("x = 1\n\ndef f(:\n", "SyntaxError", ":3"),
    "import": ("import reink_no_such_module\n", "ModuleNotFoundError", ":1"),
    "library": ("import json\n\njson.loads('{')\n", "JSONDecodeError", ":3"),
    "exit": ("import sys\nsys.exit(0)\n", "SystemExit: 0", ":2"),
}


@pytest.mark.parametrize("kind", BROKEN)
@pytest.mark.parametrize("form", ["{}.py:x", "{}:x"])
def test_a_file_that_cannot_be_imported(folder: Path, explained: object, kind: str, form: str) -> None:
    text, error, line = BROKEN[kind]
    name = f"reink_broken_{kind}"
    (folder / f"{name}.py").write_text(text)
    assert_mistake(invoke("explain", form.format(name)), "bad-target", error, f"{name}.py{line}")


def test_an_unknown_code_generator(folder: Path, explained: object) -> None:
    assert_mistake(invoke("explain", "programs.py:plain", "--codegen", "llvm"), "unknown-option", "no code generator")


def test_an_unknown_strategy(folder: Path, explained: object) -> None:
    assert_mistake(invoke("explain", "programs.py:plain", "--strategy", "v3"), "unknown-option", "v1, v2")


def test_a_refusal_of_the_library_is_printed_as_it_is(folder: Path, explained: Callable[[Explain], None]) -> None:
    refusal = ReinkError("mutated-constant", "table is a constant", why="it is written", do="pass it in")

    def explain(*given: object, **options: str) -> Report:
        raise refusal

    explained(explain)
    result = invoke("explain", "programs.py:plain")
    assert_mistake(result, "mutated-constant", str(refusal))


def test_another_error_while_compiling_names_the_users_line(folder: Path, explained: Callable[[Explain], None]) -> None:
    explained(lambda fn, args, kwargs, **options: fn(*args))
    line = PROGRAMS.splitlines().index("    y = x.view(2, 8)") + 1
    result = invoke("explain", "programs.py:plain")
    assert_mistake(result, "not-a-tensor-program", f"programs.py:{line} in view_program", "AttributeError")


def test_a_traceback_for_those_who_ask(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REINK_TRACEBACK", "1")
    result = invoke("explain", "programs.py:fails")
    assert result.exit_code == 2
    assert "Traceback" in result.stderr
    assert "docs/errors.md#bad-target" in result.stderr


# show


def test_show_refuses_what_is_no_report(folder: Path) -> None:
    a_report().save("report.json")
    Path("binary.json").write_bytes(b"\xff\xfe\x00")
    odd = {**a_report().to_json(), "seconds": {"capture": "long"}}
    Path("odd.json").write_text(json.dumps(odd))
    assert_mistake(invoke("show", "reprot.json"), "not-found", "did you mean report.json")
    assert_mistake(invoke("show", "binary.json"), "not-a-report", "binary.json")
    assert_mistake(invoke("show", "programs.py"), "not-a-report", "programs.py")
    assert_mistake(invoke("show", "."), "not-a-report")
    Path("deep.json").write_text("[" * 100_000)
    assert_mistake(invoke("show", "deep.json"), "not-a-report", "deep.json")
    assert invoke("show", "odd.json").exit_code == 2
    assert "docs/errors.md#not-a-report" in invoke("show", "odd.json").stderr


# ops


@dataclass(frozen=True)
class Row:
    name: str
    kind: str = "view"
    writes: str = ""
    twin: str = ""
    note: str = "[red]note"


@pytest.fixture
def operators(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("reink.core.opinfo")
    rows = [
        Row("aten.add_.Tensor", "in place", "self", "aten.add.Tensor"),
        Row("aten.add.Tensor"),
        Row("aten.view.default"),
    ]
    module.known_operators = lambda: rows  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "reink.core.opinfo", module)


def test_ops_lists_everything(operators: None) -> None:
    result = invoke("ops")
    assert result.exit_code == 0, result.output
    assert "3 of 3 operators" in result.stdout
    assert "[red]note" in result.stdout


@pytest.mark.parametrize(("pattern", "count"), [("add_", 1), ("add", 2), ("aten.*.default", 1), ("aten.add?.*", 1)])
def test_ops_filters(operators: None, pattern: str, count: int) -> None:
    assert f"{count} of 3 operators" in invoke("ops", pattern).stdout


def test_ops_without_a_match(operators: None) -> None:
    assert_mistake(invoke("ops", "aten.veiw.default"), "not-found", "did you mean aten.view.default")


# the whole command


def test_a_misspelled_command_or_option_is_answered_with_the_near_one() -> None:
    for arguments, near in ((["explian", "x"], "explain"), (["explain", "x", "--strct"], "--strict")):
        result = invoke(*arguments)
        assert result.exit_code == 2
        assert near in result.stderr
        assert "Traceback" not in result.stderr


def test_version() -> None:
    result = invoke("--version")
    assert result.exit_code == 0
    assert result.stdout.startswith("reink ")


@pytest.mark.parametrize("command", [[], ["explain"], ["show"], ["ops"]])
def test_help_has_an_example(command: list[str]) -> None:
    result = invoke(*command, "--help")
    assert result.exit_code == 0
    assert f"reink {' '.join(command) or 'explain'}" in result.stdout.split("Example", 1)[1]


def test_no_colour_in_a_pipe_or_with_no_color(folder: Path) -> None:
    a_report(256).save("report.json")
    command = [sys.executable, "-m", "reink.cli", "show", "report.json"]
    plain = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "FORCE_COLOR")}
    for environment in (plain, {**plain, "NO_COLOR": "1"}):
        result = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        assert "256 B copied" in result.stdout
        assert "\x1b" not in result.stdout


def test_every_code_the_command_line_uses_exists() -> None:
    source = "\n".join(path.read_text() for path in Path(reink.cli.__file__).parent.glob("*.py"))
    assert {code for code in CODES if f'"{code}"' in source} >= {"bad-target", "not-found", "unknown-option"}


# the page


def test_explain_and_show_write_the_page(folder: Path, explained: object) -> None:
    result = invoke("explain", "programs.py:plain", "--html", "page.html", "--json", "report.json")
    assert result.exit_code == 0, result.output
    assert "saved page.html; open it in a browser" in result.stderr
    assert "Nothing is copied" in result.stdout
    again = invoke("show", "report.json", "--html", "again.html")
    assert again.exit_code == 0, again.output
    assert again.stdout == ""
    assert (folder / "again.html").read_text() == (folder / "page.html").read_text()


@pytest.mark.parametrize("command", [("explain", "programs.py:plain"), ("show", "report.json")])
def test_a_page_needs_a_file_in_a_folder_that_exists(folder: Path, explained: object, command: tuple[str, str]) -> None:
    a_report().save("report.json")
    assert_mistake(invoke(*command, "--html", "-"), "unknown-option", "--html report.html")
    assert_mistake(invoke(*command, "--html", "missing/page.html"), "not-found", "missing")


@pytest.mark.parametrize(
    "command",
    [
        ("explain", "programs.py:plain", "--html", "programs.py"),
        ("explain", "programs.py:plain", "--json", "./programs.py"),
        ("explain", "programs.py:plain", "--json", "linked.py"),
        ("explain", "programs:plain", "--json", "programs.py"),
        ("explain", "programs.py:plain", "--json", "same", "--html", "./same"),
        ("explain", "programs.py:plain", "--html", "inner"),
        ("show", "report.json", "--html", "report.json"),
        ("show", "report.json", "--html", "inner/../report.json"),
    ],
)
def test_what_is_needed_is_not_written_over(
    folder: Path, explained: Callable[[Explain], None], monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    explained(lambda *args, **options: pytest.fail("compiled before it was refused"))
    (folder / "inner").mkdir()
    (folder / "linked.py").symlink_to("programs.py")
    a_report().save("report.json")
    before = {file: file.read_bytes() for file in folder.glob("*.*")}
    result = invoke(*command)
    sys.modules.pop("programs", None)
    assert_mistake(result, "unknown-option")
    assert {file: file.read_bytes() for file in folder.glob("*.*")} == before
    assert not (folder / "same").exists()


def test_a_saved_report_becomes_a_page_without_torch(folder: Path) -> None:
    a_report().save("report.json")
    code = (
        "import sys, reink; reink.Report.load('report.json').save_html('page.html'); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert "view_program" in (folder / "page.html").read_text()
