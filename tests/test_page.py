"""The page in a real browser: it plays, every control works, nothing is fetched, and no text becomes markup."""

from __future__ import annotations

import pytest
import torch
from playwright.sync_api import expect
from support.browser import CHROMIUM, MISSING
from support.pages import Open, many
from torch import Tensor

import reink
from reink.report import Conflict, Decision, Event, Held, Line, Region, Report, Snapshot, Source, Verdict
from reink.show.page import page

pytest_plugins = ("support.pages",)
pytestmark = pytest.mark.skipif(not CHROMIUM, reason=MISSING)

HOSTILE = (
    "</script><script>document.title = 'run'</script><img src=x onerror=\"document.title='run'\">'\"&amp;{{ 7 * 7 }}"
)


# the player


def test_it_plays_from_the_first_step_to_the_last(opened: Open, copied: Report) -> None:
    shown = opened(copied)
    shown.page.select_option("#speed", "0")
    assert shown.step() == 1
    shown.page.click("#play")
    assert shown.page.get_attribute("#play", "aria-label") == "Pause"
    expect(shown.page.locator("#last")).to_be_disabled()
    assert shown.step() == shown.steps() == 16
    assert shown.page.get_attribute("#play", "aria-label") == "Play"


def test_every_step_has_words_and_three_panes(opened: Open, copied: Report) -> None:
    shown = opened(copied)
    seen = set()
    for _ in range(shown.steps()):
        seen.add(shown.page.inner_text("#narration"))
        assert shown.page.inner_text("#left")
        assert shown.page.inner_text("#middle")
        shown.page.keyboard.press("ArrowRight")
    assert len(seen) == shown.steps()


@pytest.mark.parametrize(
    ("key", "button", "start", "end"),
    [
        ("ArrowRight", "#next", 3, 4),
        ("ArrowLeft", "#back", 3, 2),
        ("Home", "#first", 3, 1),
        ("End", "#last", 3, 16),
        ("1", "#act-1", 12, 1),
        ("2", "#act-2", 3, 9),
        ("3", "#act-3", 3, 11),
    ],
)
def test_each_key_does_what_its_button_does(
    opened: Open, copied: Report, key: str, button: str, start: int, end: int
) -> None:
    shown = opened(copied, f"#step-{start}")
    assert shown.step() == start
    shown.page.keyboard.press(key)
    assert shown.step() == end
    again = opened(copied, f"#step-{start}")
    again.page.click(button)
    assert again.step() == end


def test_space_plays_and_pauses_and_the_slider_jumps(opened: Open, copied: Report) -> None:
    shown = opened(copied)
    shown.page.keyboard.press("Space")
    expect(shown.page.locator("#slider")).not_to_have_value("0")
    shown.page.keyboard.press("Space")
    held = shown.step()
    shown.page.wait_for_timeout(1200)
    assert shown.step() == held
    shown.page.fill("#slider", "7")
    assert shown.step() == 8


def test_a_key_in_a_field_is_no_command(opened: Open, copied: Report) -> None:
    shown = opened(copied)
    shown.page.focus("#find")
    shown.page.keyboard.type("1 2 3 ")
    assert shown.step() == 1


# the acts


def test_the_first_act_strikes_out_lines_and_ends_in_the_epilogue(opened: Open, free: Report) -> None:
    shown = opened(free, "#step-4")
    struck = shown.page.locator("#left .row.source.done").all_inner_texts()
    assert [line.split(" ", 1)[1] for line in struck] == ["y = x.view(2, 8)", "y.add_(1)"]
    assert "version 0 → 1" in shown.page.inner_text("#middle .storage.now")
    assert "saw version 0" in shown.page.inner_text("#middle .name.stale")
    assert shown.page.locator("#right .row.new").count() == 3
    assert "y.add_(1)" in shown.page.inner_text("#narration")
    assert "→ view_1" in shown.page.inner_text("#left .row.now")
    shown.page.click("#act-2")
    shown.page.keyboard.press("ArrowLeft")
    rows = shown.page.locator("#right .row").all_inner_texts()
    assert rows[-2].startswith("copy_(x, view_3)")
    assert "epilogue" in rows[-2]
    assert shown.page.locator("#left .row.source:not(.done)").count() == 0


def test_the_second_act_says_which_line_costs_what_and_what_to_change(opened: Open, copied: Report) -> None:
    shown = opened(copied, "#decision-0")
    assert shown.page.get_attribute("#act-2", "aria-pressed") == "true"
    amber = shown.page.inner_text("#left .row.amber")
    assert "refill(cache, rows)" in amber
    assert "copied" in amber
    assert "cache[5] - before[5]" in shown.page.inner_text("#left .row.reads")
    card = shown.page.inner_text("#middle")
    for part in ("256 B copied", "why_copied.py:20", "why_copied.py:21", "bytes 1280 to 1536", copied.decisions[0].do):
        assert part in card
    assert "saved, 256 B" in shown.page.inner_text("#right .row.amber")
    assert shown.page.locator("#table tr.here").count() == 1


def test_in_place_is_green_and_candidates_are_grey_before(opened: Open, free: Report) -> None:
    shown = opened(free)
    shown.page.click("#act-2")
    assert shown.page.locator("#right .tag", has_text="candidate").count() == 2
    shown.page.keyboard.press("ArrowRight")
    assert shown.page.locator("#right .row.green").count() == 1
    assert "in place" in shown.page.inner_text("#left .row.green")


def test_the_third_act_marks_the_copy_and_what_fell_away(opened: Open, copied: Report) -> None:
    shown = opened(copied)
    shown.page.click("#act-3")
    assert "clone(select)" in shown.page.inner_text("#right .row.amber")
    assert "clone(cache)" in shown.page.inner_text("#left .row:has-text('removed by a pass')")
    assert "513.3 KiB" in shown.page.inner_text("#middle .eager")
    assert "257.5 KiB" in shown.page.inner_text("#middle .lowered")


def test_the_answer_stands_above_the_story(opened: Open, copied: Report, free: Report) -> None:
    answer = opened(copied).page.inner_text(".answer")
    for part in (
        "1 copy is left",
        "256 B",
        "refill(cache, rows)",
        "return cache[5] - before[5]",
        copied.decisions[0].do,
    ):
        assert part in answer
    assert "Nothing is copied" in opened(free).page.inner_text(".answer")


# memory


def test_the_chart_tells_peaks_and_names_what_is_held(opened: Open, copied: Report) -> None:
    shown = opened(copied)
    peaks = shown.page.inner_text("#peaks")
    for part in ("513.3 KiB", "769.3 KiB", "257.5 KiB", "as you wrote it", "as it runs"):
        assert part in peaks
    assert "peak 257.5 KiB" in (shown.page.get_attribute("#chart svg", "aria-label") or "")
    shown.page.hover("#chart svg", position={"x": 700, "y": 80})
    assert "cache 256.0 KiB" in shown.page.inner_text(".tip")
    shown.page.mouse.move(0, 0)
    assert not shown.page.is_visible(".tip")
    shown.page.focus("#chart svg")
    shown.page.keyboard.press("End")
    assert "return sub" in shown.page.inner_text(".tip")
    assert shown.step() == 1
    shown.page.keyboard.press("Escape")
    assert not shown.page.is_visible(".tip")


# the table


def test_the_table_sorts_filters_and_shows_more(opened: Open) -> None:
    shown = opened(many())
    first = "#table tbody tr:first-child"
    assert shown.page.locator("#table tbody tr").count() == 200
    shown.page.click("#more")
    assert shown.page.locator("#table tbody tr").count() == 500
    shown.page.click("th button:has-text('copied')")
    shown.page.click("th button:has-text('copied')")
    assert "op490" in shown.page.inner_text(first)
    assert shown.page.get_attribute("th:has-text('copied')", "aria-sort") == "descending"
    shown.page.select_option("#outcome", "copies")
    assert shown.page.inner_text("#found") == "50 of 500"
    shown.page.fill("#find", "OP49")
    assert shown.page.inner_text("#found") == "1 of 500"


def test_the_search_is_for_what_is_shown(opened: Open) -> None:
    shown = opened(many())
    for words, found in (("avoided", "nothing matches"), ("model.py:7", "500 of 500"), ("/home/me", "nothing matches")):
        shown.page.fill("#find", words)
        assert shown.page.inner_text("#found") == found


def test_a_decision_far_down_is_drawn_and_stays_marked(opened: Open) -> None:
    shown = opened(many(), "#decision-450")
    here = shown.page.locator("#table tr.here td:first-child")
    assert here.inner_text() == "450"
    expect(here).to_be_in_viewport()
    shown.page.click("th button:has-text('write')")
    shown.page.select_option("#outcome", "copies")
    assert here.inner_text() == "450"
    shown.page.select_option("#outcome", "in place")
    assert here.count() == 0
    assert not shown.page.is_visible("#keys")


def test_a_row_leads_into_the_story_and_a_reason_to_its_words(opened: Open, copied: Report) -> None:
    shown = opened(copied)
    shown.page.click("#table tbody a[href='#decision-0']")
    assert shown.step() == 10
    link = shown.page.locator("#table tbody a", has_text="a later read needs").first
    target = link.get_attribute("href") or ""
    assert "Read it before the write" in (shown.page.text_content(f"{target} + dd") or "")
    link.click()
    assert shown.page.is_visible(f"{target} + dd")
    assert (shown.page.text_content("main") or "").count("docs/errors.md") == 1


# whatever is in a report


def hostile() -> Report:
    source = Source(f"/home/{HOSTILE}.py", 3, HOSTILE, HOSTILE)
    conflict = Conflict(HOSTILE, HOSTILE, HOSTILE, source, source, Region(0, ((4, 1),)), (Region(0, ((8, 1),)),), 16)
    line = Line(HOSTILE, HOSTILE, 0, "write")
    snapshots = [
        Snapshot(step, form, f"inputs {HOSTILE}\n    {HOSTILE}", 1, (Line(), line), (Held(HOSTILE, "value", 8, 0, 1),))
        for step, form in (("capture", "mutable"), ("functionalize", "functional"), ("lower", "lowered"))
    ]
    return Report(
        name=HOSTILE,
        snapshots=snapshots,
        events=[
            Event("input", HOSTILE, 0, HOSTILE, "x", 0, Region(0, ((16, 1),))),
            Event("write", HOSTILE, 1, HOSTILE, HOSTILE),
        ],
        decisions=[
            Decision(0, HOSTILE, HOSTILE, "saved", 8, 0, HOSTILE, HOSTILE, HOSTILE, HOSTILE, source, conflict, HOSTILE)
        ],
        verdicts=[Verdict(HOSTILE, False, (HOSTILE,))],
        seconds={HOSTILE: 0.5},
        fallback=HOSTILE,
        sources=[source],
    )


def test_text_is_shown_and_never_run(opened: Open) -> None:
    shown = opened(hostile())
    for _ in range(shown.steps()):
        assert HOSTILE in shown.page.inner_text("main")
        shown.page.keyboard.press("ArrowRight")
    shown.page.hover("#chart svg", position={"x": 300, "y": 80})
    assert HOSTILE in shown.page.inner_text(".tip")
    assert HOSTILE in shown.page.inner_text("#table")
    assert HOSTILE in shown.page.inner_text("h1")
    assert shown.page.title() == f"reink: {HOSTILE}"
    assert shown.page.locator("img, main script").count() == 0


ODD = {
    "empty": Report(),
    "a fallback": Report(fallback="the ownership check failed", verdicts=[Verdict("ownership", False, ("lost",))]),
    "no story": Report(snapshots=[Snapshot("load", "functional", "a = b", 1), Snapshot("lower", "lowered", "b", 1)]),
    "decisions alone": Report(decisions=[Decision(3, "op", "self", "detached", None, None, "4*s0 bytes")]),
}


@pytest.mark.parametrize("report", ODD.values(), ids=ODD)
def test_a_report_with_little_in_it_is_a_page_too(opened: Open, report: Report) -> None:
    shown = opened(report)
    assert shown.page.inner_text("h1") == "program"
    for key in ("End", "Home", "1", "2", "3", "Space"):
        shown.page.keyboard.press(key)


def test_symbolic_sizes_have_words_instead_of_bars(opened: Open) -> None:
    def grow(x: Tensor) -> Tensor:
        x[0].add_(1)
        return x.sum(0)

    program = torch.ones(4, 4)
    torch._dynamo.mark_dynamic(program, 0)
    fast = reink.compile(grow, dynamic=True, codegen="eager")
    fast(program)
    shown = opened(fast.reports[0])
    shown.page.keyboard.press("End")
    assert shown.page.inner_text("#peaks")


def large(nodes: int = 20_000) -> Report:
    """A report as of a program of so many nodes: every fourth writes a row of one storage."""
    rows = range(nodes)
    sources = [Source("/home/me/model.py", k + 1, "step", f"cache[{k}].add_(row)") for k in range(100)]
    captured = [Line(f"n{k}", "", k % 100, "pure" if k % 4 else "write") for k in rows]
    of = [line._replace(of=line.node) for line in captured]
    text = "\n".join(
        ["inputs cache: f32[64, 128]", *[f"    n{k}: f32[128] = add(n{k - 1}, {k})" for k in rows], "    return n0"]
    )
    held = tuple(Held(f"n{k}", "value", 512, k + 1, k + 3) for k in rows)
    whole = Region(0, ((32768, 1),))
    events = [Event("input", "cache", 0, "cache", "cache", 0, whole)]
    for k in rows[::4]:
        row = Region(512 * (k // 4 % 64), ((512, 1),))
        events.append(Event("write-back", "cache", k // 4 + 1, f"n{k}", f"n{k}", 1 + k // 4 % 64, row))
    decisions = [
        Decision(k // 4, "aten.add_.Tensor", "self", "in place", 0, 512, "0 B", node=f"n{k}", source=sources[k % 100])
        for k in rows[::4]
    ]
    steps = (("capture", "mutable", captured), ("functionalize", "functional", of), ("lower", "lowered", of))
    end = Line("output", "", -1, "result")
    snapshots = [Snapshot(step, form, text, nodes, (Line(), *lines, end), held) for step, form, lines in steps]
    return Report(snapshots=snapshots, events=events, decisions=decisions, sources=sources)  # fmt: skip


def test_twenty_thousand_nodes_open_soon_and_fold(opened: Open) -> None:
    shown = opened(large())
    assert shown.page.evaluate("performance.getEntriesByType('navigation')[0].domComplete") < 5_000
    assert shown.steps() > 40_000
    for key in ("End", "1", "2", "3", "ArrowRight", "Home"):
        shown.page.keyboard.press(key)
        assert shown.page.evaluate("document.querySelectorAll('*').length") < 6_000
    shown.page.fill("#slider", "9000")
    assert shown.page.locator("#left .row.now").is_visible()
    shown.page.evaluate("document.getElementById('left').scrollTop = 0")
    expect(shown.page.locator("#left .row").first).to_contain_text("model.py")


def test_five_hundred_nodes_are_less_than_a_megabyte() -> None:
    assert len(page(large(500)).encode()) < 1_000_000
