"""What a person reads at a terminal, 80 columns wide and without colour unless a test says so."""

from __future__ import annotations

import io
import subprocess
import sys

import pytest
from rich.console import Console

from reink.report import Conflict, Decision, Report, Snapshot, Source, Verdict
from reink.show.terminal import LONGEST_PROGRAM, MOST_FREE_ROWS, print_report, render

FILE = "/home/me/attention.py"


def free(number: int = 0) -> Decision:
    source = Source(FILE, 12, "step", "y.add_(1)")
    return Decision(number, "aten.add_.Tensor", "self", "in place", 0, 64, "0 B", source=source)


def saved() -> Decision:
    write = Source(FILE, 21, "step", "ops.rope(key_cache)")
    return Decision(
        2,
        "mylib.rope.default",
        "key_cache",
        "saved",
        256,
        1024,
        "256 B",
        reason="row 0 is read after the write",
        do="read the row before rope",
        source=write,
        conflict=Conflict("mul_2", "select_3", "rope_1", Source(FILE, 24, "step", "late = row * 2"), write),
    )


def detached() -> Decision:
    return Decision(3, "aten.index_put_.default", "self", "detached", None, None, "4*s0 bytes", do="pass it in")


def sample() -> Report:
    return Report(
        name="step",
        snapshots=[
            Snapshot("capture", "mutable", "y = view(x, [2, 8])\nadd_(y, 1)\nreturn mul(x, 2)", 4),
            Snapshot("functionalize", "functional", "a = add(y, 1)\nepilogue x <- a", 5),
            Snapshot("cleanup", "functional", "only cleanup prints this", 5),
            Snapshot("reinplace", "inplace", "only reinplace prints this", 5),
            Snapshot("lower", "lowered", "add_(y, 1)\nreturn mul(x, 2)", 3),
        ],
        decisions=[free(), saved(), detached()],
        verdicts=[Verdict("ownership", True)],
        seconds={"capture": 0.5, "lower": 0.25},
    )


def printed(report: Report, width: int = 80, *, programs: bool = True, colour: bool = False) -> str:
    console = Console(
        file=io.StringIO(), width=width, force_terminal=colour, color_system="truecolor" if colour else None
    )
    print_report(report, console, programs=programs)
    output = console.file
    assert isinstance(output, io.StringIO)
    return output.getvalue()


def words(text: str) -> str:
    """`text` without its line breaks and boxes."""
    return " ".join(text.replace("│", " ").split())


# what is there


def test_the_headline_comes_first() -> None:
    assert printed(sample()).startswith(sample().headline()[:60])


def test_the_three_programs_are_shown_in_order() -> None:
    text = printed(sample())
    places = [text.index(title) for title in ("captured", "functionalized", "lowered")]
    assert places == sorted(places)
    assert "epilogue x <- a" in text
    assert "4 nodes" in text
    assert "only cleanup" not in text
    assert "only reinplace" not in text


@pytest.mark.parametrize(("codegen", "said"), [("eager", "what runs"), ("inductor", "what code is generated for")])
def test_the_last_program_says_what_becomes_of_it(codegen: str, said: str) -> None:
    report = sample()
    report.codegen = codegen
    assert f"lowered: {said} - 3 nodes" in printed(report)


def test_programs_can_be_left_out() -> None:
    text = printed(sample(), programs=False)
    assert "epilogue" not in text
    assert "captured" not in text
    assert "mul_2" in text


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_has_each_decision(width: int) -> None:
    text = words(printed(sample(), width))
    for cell in (
        "add_.Tensor",
        "(self)",
        "attention.py:12",
        "in place",
        "saved",
        "256 B",
        "detached",
        "4*s0 bytes",
    ):
        assert cell in text
    assert "mul_2" in text
    assert "attention.py:24" in text


def test_a_wide_table_says_what_to_change() -> None:
    assert "what to change" in printed(sample(), 120)
    assert "what to change" not in printed(sample(), 80)


def test_each_copy_has_a_paragraph_with_the_whole_conflict() -> None:
    text = words(printed(sample(), programs=False))
    paragraph = text[text.index("#2 256 B copied for the write mylib.rope.default(key_cache): saved") :]
    for part in (
        "at attention.py:21 in step ops.rope(key_cache)",
        "read mul_2 at attention.py:24 in step late = row * 2",
        "needs select_3",
        "but rope_1 would overwrite it first",
        "why row 0 is read after the write",
        "do read the row before rope",
        "#3 4*s0 bytes copied for the write aten.index_put_.default(self): detached",
    ):
        assert part in paragraph


def test_only_outcomes_that_occur_are_explained() -> None:
    text = printed(sample())
    assert "saved before" not in text
    assert "the old bytes that a later read needs were copied" in text
    assert "hoisted" not in text


def test_totals_checks_and_seconds_are_there() -> None:
    text = words(printed(sample()))
    assert "copied 256 B, and 1 copy whose size is known only when it runs" in text
    assert "avoided 1.1 KiB" in text
    assert "2 copies remain" in text
    assert "check ownership: ok" in text
    assert "capture 0.500, lower 0.250; total 0.750" in text


def test_nothing_copied_is_said_plainly() -> None:
    assert "Nothing is copied. The one write happens in place." in printed(Report(decisions=[free()]))
    assert "Nothing is copied. All 2 writes happen in place." in printed(Report(decisions=[free(), free(1)]))
    assert "Nothing is copied. This program writes no tensor." in printed(Report())


def test_a_failed_check_shows_its_evidence_and_the_fallback_is_red() -> None:
    report = Report(verdicts=[Verdict("values", False, ("output 0 differs",))], fallback="ownership failed")
    text = printed(report, colour=True)
    assert "FAILED" in text
    assert "output 0 differs" in text
    fallback = next(line for line in text.splitlines() if "fallback" in line)
    assert fallback.startswith("\x1b[1;31m")
    assert "ownership failed" in fallback


def test_without_a_fallback_there_is_no_such_word() -> None:
    assert "fallback" not in printed(sample())


def test_a_report_without_a_captured_program_shows_the_rest() -> None:
    report = Report(
        snapshots=[
            Snapshot("load", "functional", "a = add(x, 1)", 2),
            Snapshot("reinplace", "inplace", "b", 2),
        ]
    )
    text = printed(report)
    assert "captured" not in text
    assert "functionalized" in text
    assert "lowered" in text


# the text is the user's


@pytest.mark.parametrize("name", ["[red]x", "[/]", "[bold", ":smile:", "[link=http://x]y[/link]", "\\[x]"])
def test_brackets_are_no_markup(name: str) -> None:
    source = Source(FILE, 1, name, name)
    conflict = Conflict(name, name, name, source)
    decision = Decision(1, name, name, "saved", 8, 0, "8 B", name, name, source=source, conflict=conflict)
    report = Report(
        name=name,
        snapshots=[Snapshot("capture", "mutable", f"call({name})", 1)],
        decisions=[decision],
        verdicts=[Verdict(name, False, (name,))],
        seconds={name: 0.0},
        fallback=name,
    )
    text = printed(report, 200)
    assert text.count(name) >= 12
    assert f"call({name})" in text


def test_control_characters_do_not_reach_the_terminal() -> None:
    text = printed(Report(name="a\x1b[31mb\x07\r", snapshots=[Snapshot("capture", "mutable", "\x1b]0;title\x07", 1)]))
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "\r" not in text
    assert "a\\x1b[31mb\\x07\\x0d" in text


# size and colour


@pytest.mark.parametrize("width", [40, 80, 120])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    assert max(len(line) for line in printed(sample(), width).splitlines()) <= width


def test_a_long_program_is_folded_in_the_middle() -> None:
    lines = [f"line{number} = add(x, {number})" for number in range(LONGEST_PROGRAM + 50)]
    text = printed(Report(snapshots=[Snapshot("capture", "mutable", "\n".join(lines), len(lines))]))
    assert "50 lines hidden" in text
    assert text.count(" = add(") == LONGEST_PROGRAM
    assert lines[0] in text
    assert lines[-1] in text
    assert lines[LONGEST_PROGRAM // 2] not in text


def test_a_program_at_the_limit_is_whole() -> None:
    text = printed(Report(snapshots=[Snapshot("capture", "mutable", "\n".join(["a = b"] * LONGEST_PROGRAM), 1)]))
    assert "hidden" not in text
    assert text.count("a = b") == LONGEST_PROGRAM


def test_many_free_writes_are_counted_and_every_copy_is_shown() -> None:
    report = Report(decisions=[*(free(number) for number in range(MOST_FREE_ROWS + 7)), saved()])
    text = printed(report)
    assert "7 writes more without a copy" in text
    assert text.count("in place") >= MOST_FREE_ROWS
    assert "mylib.rope" in text


def test_colour_only_where_a_terminal_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b" not in printed(sample())
    assert "\x1b[32m" in printed(sample(), colour=True)


def test_no_color_is_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    text = printed(sample(), colour=True)
    assert "\x1b[32m" not in text
    assert "\x1b[33m" not in text


def test_an_ascii_pipe_gets_ascii() -> None:
    output = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    print_report(sample(), Console(file=output, width=80))


def test_it_prints_to_standard_output_by_itself(capsys: pytest.CaptureFixture[str]) -> None:
    print_report(sample())
    assert "mul_2" in capsys.readouterr().out


def test_what_render_returns_fits_into_another_layout() -> None:
    console = Console(file=io.StringIO(), width=80)
    console.print(render(sample()))


def test_a_saved_report_opens_without_torch() -> None:
    code = "import sys, reink.report, reink.show.terminal, reink.cli; assert 'torch' not in sys.modules"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
