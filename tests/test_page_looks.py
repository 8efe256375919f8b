"""How the page looks and behaves: its address and keys, narrow windows, print, no scripts, notebooks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from playwright.sync_api import Browser, expect
from support.browser import CHROMIUM, MISSING, Watched
from support.pages import Open, many
from torch import Tensor

import reink
from reink.report import Conflict, Decision, Report, Source
from reink.show.page import frame

pytest_plugins = ("support.pages",)
pytestmark = pytest.mark.skipif(not CHROMIUM, reason=MISSING)

# Text that has to be read, and stands on its own background.
READ = (
    "h1 code",
    ".sub",
    ".tiles dt",
    ".tiles dd",
    ".card h3",
    ".why dt",
    ".why strong",
    ".quiet",
    ".act span",
    ".pane h3",
    ".narration",
    ".row .text",
    ".row .number",
    ".row .tag",
    ".counter",
    "th button",
    "td code",
    "td a",
    "footer p",
)

# The contrast of each such element with what lies behind it, by the formula of WCAG 2.
CONTRAST = """selector => {
  const numbers = colour => colour.match(/[\\d.]+/g).map(Number);
  const linear = v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = colour => {
    const [r, g, b] = numbers(colour).slice(0, 3).map(v => linear(v / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const colours = element => getComputedStyle(element);
  return [...document.querySelectorAll(selector)].filter(e => e.checkVisibility()).slice(0, 40).map(element => {
    let behind = element;
    while (behind && (numbers(colours(behind).backgroundColor)[3] ?? 1) === 0) behind = behind.parentElement;
    const both = [light(colours(element).color), light(colours(behind || document.body).backgroundColor)];
    return (Math.max(...both) + 0.05) / (Math.min(...both) + 0.05);
  });
}"""


# the address and the keys


def test_a_link_to_a_decision_leads_there_on_every_click(opened: Open, copied: Report) -> None:
    shown = opened(copied)
    for key in ("Home", "End"):
        shown.page.click(".answer a[href='#decision-0']")
        assert shown.step() == 10
        shown.page.keyboard.press(key)
        assert shown.step() != 10


def test_back_leads_where_one_was_and_the_address_says_where_one_is(opened: Open, copied: Report) -> None:
    shown = opened(copied)
    assert shown.page.evaluate("location.hash") == ""
    shown.page.click(".answer a[href='#decision-0']")
    assert shown.page.evaluate("location.hash") == "#decision-0"
    shown.page.go_back()
    assert shown.step() == 1
    shown.page.fill("#slider", "6")
    assert shown.page.evaluate("location.hash") == "#step-7"
    shown.page.evaluate("location.hash = '#step-3'")
    expect(shown.page.locator("#counter")).to_contain_text("step 3 of")
    shown.page.go_back()
    expect(shown.page.locator("#counter")).to_contain_text("step 7 of")


def test_fields_that_a_browser_fills_again_are_applied(opened: Open) -> None:
    shown = opened(many())
    shown.page.evaluate("document.getElementById('find').value = 'op499'")
    shown.page.evaluate("dispatchEvent(new PageTransitionEvent('pageshow'))")
    assert shown.page.inner_text("#found") == "1 of 500"


def test_a_button_that_is_of_no_more_use_passes_the_focus_on(opened: Open, copied: Report) -> None:
    shown = opened(copied)
    for button, other in (("#last", "back"), ("#first", "next")):
        shown.page.focus(button)
        shown.page.keyboard.press("Enter")
        assert shown.page.evaluate("document.activeElement.id") == other


def test_space_on_the_slider_plays(opened: Open, copied: Report) -> None:
    shown = opened(copied)
    shown.page.focus("#slider")
    shown.page.keyboard.press("Space")
    assert shown.page.get_attribute("#play", "aria-label") == "Pause"


def test_keys_are_the_pages_own_where_the_story_is_not(opened: Open, copied: Report) -> None:
    shown = opened(copied)
    shown.page.focus("#table th button")
    shown.page.keyboard.press("End")
    assert shown.step() == 1
    shown.page.evaluate("document.activeElement.blur(); scrollTo({top: 9999, behavior: 'instant'})")
    shown.page.set_viewport_size({"width": 1400, "height": 500})
    shown.page.evaluate("scrollTo({top: 9999, behavior: 'instant'})")
    for key in ("Home", "End", "Space", "ArrowRight"):
        shown.page.evaluate("scrollTo({top: 9999, behavior: 'instant'})")
        shown.page.keyboard.press(key)
        assert shown.step() == 1


def test_a_pane_that_scrolls_keeps_its_arrow(opened: Open, copied: Report) -> None:
    shown = opened(copied, "#step-5")
    shown.page.set_viewport_size({"width": 420, "height": 800})
    shown.page.focus("#right")
    shown.page.keyboard.press("ArrowRight")
    assert shown.step() == 5
    shown.page.focus("#middle")
    shown.page.keyboard.press("ArrowRight")
    assert shown.step() == 6


# how it looks


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_background(opened: Open, copied: Report, scheme: str) -> None:
    shown = opened(copied, color_scheme=scheme, reduced_motion="reduce")
    for step in ("#step-5", "#decision-0", "#step-13"):
        shown.page.evaluate(f"location.hash = '{step}'")
        for selector in READ:
            ratios = shown.page.evaluate(CONTRAST, selector)
            assert min(ratios, default=21) >= 4.5, f"{selector} at {step}"


def test_nothing_moves_for_who_asks_for_that(opened: Open, free: Report) -> None:
    moving = "getComputedStyle(document.querySelector('.row.new')).animationName"
    assert opened(free, "#step-4").page.evaluate(moving) == "arrive"
    assert opened(free, "#step-4", reduced_motion="reduce").page.evaluate(moving) == "none"


@pytest.mark.parametrize("width", [1400, 900, 420])
def test_it_fits_the_window(opened: Open, copied: Report, width: int) -> None:
    shown = opened(copied)
    shown.page.set_viewport_size({"width": width, "height": 800})
    for step in ("#step-5", "#decision-0", "#step-13"):
        shown.page.evaluate(f"location.hash = '{step}'")
        assert shown.page.evaluate("document.documentElement.scrollWidth") <= width


def test_long_names_wrap(opened: Open) -> None:
    source = Source("/home/" + "a" * 400 + ".py", 3, "f", "b" * 400)
    conflict = Conflict("c" * 300, "d" * 300, "e" * 300, source)
    shown = opened(Report(decisions=[Decision(0, "f" * 300, "g", "saved", 8, 0, "", source=source, conflict=conflict)]))
    for width in (1400, 420):
        shown.page.set_viewport_size({"width": width, "height": 800})
        assert shown.page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("width", [900, 420])
def test_a_narrow_table_shows_every_column(opened: Open, copied: Report, width: int) -> None:
    shown = opened(copied)
    shown.page.set_viewport_size({"width": width, "height": 800})
    box = shown.page.locator("#table td").last.bounding_box()
    assert box is not None
    assert box["x"] + box["width"] <= width


def test_names_of_the_pure_graph_are_said_to_be_such(opened: Open, copied: Report) -> None:
    answer = opened(copied).page.inner_text(".answer")
    assert "still needs 256 B as they were before the write (select_1 of the pure graph)" in answer
    assert "reink already copies only the part that is needed" in answer


def reused(x: Tensor) -> Tensor:
    y = torch.sin(x) + 1
    x.add_(y)
    return y


def test_memory_that_reink_uses_again_is_no_write_of_the_programs(opened: Open) -> None:
    shown = opened(reink.explain(reused, (torch.ones(64),), codegen="eager"))
    shown.page.click("#act-3")
    tags = shown.page.locator("#right .tag").all_inner_texts()
    assert sorted(tags) == ["in place", "uses memory again"]


def test_the_last_step_speaks_in_sentences(opened: Open, copied: Report) -> None:
    shown = opened(copied)
    shown.page.keyboard.press("End")
    assert shown.page.inner_text("#narration").startswith("Done. The most memory held at once: 513.3 KiB")


def test_print_shows_panes_whole(opened: Open, copied: Report) -> None:
    shown = opened(copied, "#decision-0")
    shown.page.set_viewport_size({"width": 720, "height": 900})
    shown.page.emulate_media(media="print")
    for pane in ("#left", "#middle", "#right"):
        whole = (
            "e => e.parentElement.scrollHeight <= e.parentElement.clientHeight + 1 && e.scrollWidth <= e.clientWidth"
        )
        assert shown.page.eval_on_selector(pane, whole), pane


def test_print_leaves_the_controls_out(opened: Open, copied: Report) -> None:
    shown = opened(copied)
    shown.page.emulate_media(media="print")
    assert not shown.page.is_visible(".controls")
    assert shown.page.is_visible("#table")
    assert len(shown.page.pdf()) > 10_000


def test_without_scripts_the_report_is_there_in_words(chromium: Browser, copied: Report, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    copied.save_html(file)
    shown = Watched(chromium, file, java_script_enabled=False)
    assert copied.headline() in shown.page.inner_text("main noscript")
    assert shown.page.is_visible(".answer")
    for empty in ("#story", "#memory", "#decisions", "#keys"):
        assert not shown.page.is_visible(empty)
    shown.close()


def test_a_notebook_gets_the_page_in_a_frame(chromium: Browser, copied: Report, tmp_path: Path) -> None:
    file = tmp_path / "notebook.html"
    assert copied._repr_html_() == frame(copied)
    file.write_text(f"<!doctype html><title>notebook</title>{copied._repr_html_()}", encoding="utf-8")
    shown = Watched(chromium, file)
    inside = shown.page.frame_locator("iframe")
    inside.locator("#next").click()
    assert inside.locator("#counter").inner_text().startswith("step 2 of")
    shown.close()
