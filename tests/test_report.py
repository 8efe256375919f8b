"""A report survives being saved, and says in words what is in it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reink.errors import ReinkError
from reink.report import (
    FORMAT,
    Conflict,
    Decision,
    Event,
    Held,
    Line,
    Region,
    Report,
    Snapshot,
    Source,
    Verdict,
    amount,
    describe,
)

words = st.text(max_size=12)
sizes = st.none() | st.integers(min_value=0, max_value=2**50)
sources = st.builds(Source, words, st.integers(0, 10**6), words, words)
pairs = st.tuples(st.integers(0, 99), st.integers(1, 99))
regions = st.builds(Region, st.integers(0), st.lists(pairs, max_size=3).map(tuple))
conflicts = st.builds(
    Conflict,
    words,
    words,
    words,
    st.none() | sources,
    st.none() | sources,
    st.none() | regions,
    st.lists(regions, max_size=2).map(tuple),
    sizes,
)
decisions = st.builds(
    Decision,
    id=st.integers(0, 1000),
    operator=words,
    argument=words,
    outcome=st.sampled_from(["in place", "hoisted", "saved", "detached", "copied back"]),
    bytes=sizes,
    avoided=sizes,
    size=words,
    reason=words,
    do=words,
    node=words,
    source=st.none() | sources,
    conflict=st.none() | conflicts,
    storage=words,
)
events = st.builds(Event, words, words, st.integers(0, 99), words, words, st.integers(0, 9), st.none() | regions)
lines = st.builds(Line, words, words, st.integers(-1, 9), words)
held = st.builds(Held, words, words, sizes, st.integers(0, 99), st.integers(0, 99))
snapshots = st.builds(
    Snapshot,
    words,
    st.sampled_from(["mutable", "functional", "inplace", "lowered"]),
    words,
    st.integers(0),
    st.lists(lines, max_size=3).map(tuple),
    st.lists(held, max_size=3).map(tuple),
)
verdicts = st.builds(Verdict, words, st.booleans(), st.lists(words, max_size=3).map(tuple))
reports = st.builds(
    Report,
    name=words,
    strategy=st.sampled_from(["v1", "v2"]),
    codegen=st.sampled_from(["eager", "inductor"]),
    snapshots=st.lists(snapshots, max_size=3),
    events=st.lists(events, max_size=3),
    decisions=st.lists(decisions, max_size=3),
    verdicts=st.lists(verdicts, max_size=3),
    seconds=st.dictionaries(words, st.floats(0, 1e6), max_size=3),
    fallback=words,
    sources=st.lists(sources, max_size=3),
)


def decision(number: int = 1, copied: int | None = 0, **more: object) -> Decision:
    """A decision about ``add_(self)`` that copied so many bytes and avoided 64."""
    values: dict[str, object] = {
        "id": number,
        "operator": "add_",
        "argument": "self",
        "outcome": "saved" if copied != 0 else "in place",
        "bytes": copied,
        "avoided": 64,
        "size": "4*s0 bytes" if copied is None else amount(copied),
    }
    return Decision(**{**values, **more})  # type: ignore[arg-type]


# saved and read back


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(report=reports)
def test_a_saved_report_reads_back_the_same(report: Report, tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    report.save(file)
    assert Report.load(file) == report


@settings(max_examples=60, deadline=None)
@given(report=reports)
def test_json_holds_the_totals(report: Report) -> None:
    values = json.loads(json.dumps(report.to_json()))
    assert values["format"] == FORMAT
    assert values["bytes_cloned"] == report.bytes_cloned
    assert values["bytes_avoided"] == report.bytes_avoided
    assert Report.from_json(values) == report


NOT_REPORTS = {
    "empty": b"",
    "words": b"no json at all",
    "binary": b"\x80\x04\x95\xff\x00\xfe",
    "a list": b"[]",
    "a number": b"12",
    "null": b"null",
    "another object": b'{"name": "x"}',
    "half a report": b'{"format": 3, "name": "x"}',
    "an earlier format": json.dumps({**Report().to_json(), "format": 1}).encode(),
    "a later format": json.dumps({**Report().to_json(), "format": FORMAT + 1}).encode(),
    "an odd decision": json.dumps({**Report().to_json(), "decisions": [{"id": 1}]}).encode(),
    "an odd source": json.dumps({**Report().to_json(), "sources": [{"column": 1}]}).encode(),
    "an odd event": json.dumps({**Report().to_json(), "events": [["write", "x"]]}).encode(),
    "an odd line": json.dumps({**Report().to_json(), "snapshots": [{"step": "capture", "lines": [1]}]}).encode(),
}


@pytest.mark.parametrize("content", NOT_REPORTS.values(), ids=NOT_REPORTS.keys())
def test_other_files_are_refused(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "other.json"
    file.write_bytes(content)
    with pytest.raises(ReinkError, match=r"other\.json") as caught:
        Report.load(file)
    assert caught.value.code == "not-a-report"


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "missing.json", tmp_path):
        with pytest.raises(ReinkError) as caught:
            Report.load(path)
        assert caught.value.code == "not-a-report"


WHOLE = Report(
    snapshots=[Snapshot("capture", "mutable", "a", 1, (Line("a", "", 0, "pure"),), (Held("a", "value", 8, 0, 1),))],
    events=[Event("input", "x", 0, "x", "x", 0, Region(0, ((4, 1),)))],
    decisions=[decision(source=Source("a.py", 3), conflict=Conflict("a", "b", "c", needed=Region(0, ((4, 1),))))],
    verdicts=[Verdict("ownership", True, ("fine",))],
    seconds={"lower": 0.5},
    sources=[Source("a.py", 3)],
)

# Where a value stands in the JSON of WHOLE, and one of another type.
ODD_VALUES = {
    "a source file that is a number": ("sources.0.file", 3),
    "a line number in words": ("sources.0.line", "3"),
    "a text that is a number": ("snapshots.0.text", 5),
    "held bytes in words": ("snapshots.0.held.0.2", "big"),
    "a row that is a word": ("snapshots.0.lines.0", "junk"),
    "a row of words only": ("snapshots.0.lines.0.2", "0"),
    "too many values for a row": ("snapshots.0.lines.0", ["a", "", 0, "pure", "more"]),
    "an unknown outcome": ("decisions.0.outcome", "lost"),
    "a number that is true": ("decisions.0.id", True),
    "a region without its dims": ("events.0.6", [0]),
    "a dim of three": ("decisions.0.conflict.needed.1.0", [1, 2, 3]),
    "an answer that is a word": ("verdicts.0.ok", "yes"),
    "time in words": ("seconds.lower", "long"),
    "a name that is a list": ("name", ["a"]),
}


@pytest.mark.parametrize(("where", "value"), ODD_VALUES.values(), ids=ODD_VALUES)
def test_a_value_of_another_type_is_refused(where: str, value: object, tmp_path: Path) -> None:
    values = json.loads(json.dumps(WHOLE.to_json()))
    assert Report.from_json(values) == WHOLE
    *path, last = where.split(".")
    inner = values
    for step in path:
        inner = inner[int(step) if isinstance(inner, list) else step]
    inner[int(last) if isinstance(inner, list) else last] = value
    file = tmp_path / "odd.json"
    file.write_text(json.dumps(values))
    with pytest.raises(ReinkError) as caught:
        Report.load(file)
    assert caught.value.code == "not-a-report"


def test_another_format_asks_for_the_report_again(tmp_path: Path) -> None:
    file = tmp_path / "old.json"
    file.write_text(json.dumps({**Report().to_json(), "format": FORMAT - 1}))
    with pytest.raises(ReinkError, match="make the report again with this reink"):
        Report.load(file)


def test_what_cannot_be_written_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, content: bytes) -> int:
        with self.open("wb") as half:
            half.write(content[:10])
        raise OSError("no space left on device")

    file = tmp_path / "report.json"
    Report().save(file)
    before = file.read_bytes()
    monkeypatch.setattr(Path, "write_bytes", full)
    for write in (WHOLE.save, WHOLE.save_html):
        with pytest.raises(OSError, match="no space"):
            write(file)
    assert file.read_bytes() == before
    assert list(tmp_path.iterdir()) == [file]


def test_a_save_keeps_the_mode_and_goes_through_a_link(tmp_path: Path) -> None:
    file, link = tmp_path / "report.json", tmp_path / "link.json"
    file.write_text("old")
    file.chmod(0o640)
    link.symlink_to(file)
    WHOLE.save(link)
    assert link.is_symlink()
    assert Report.load(file) == WHOLE
    assert file.stat().st_mode & 0o777 == 0o640


def test_half_a_letter_can_be_saved(tmp_path: Path) -> None:
    odd = Report(name="caf\udce9")
    odd.save(tmp_path / "report.json")
    assert Report.load(tmp_path / "report.json") == odd
    odd.save_html(tmp_path / "report.html")
    assert "caf\\udce9" in (tmp_path / "report.html").read_text(encoding="utf-8")


# in words


@pytest.mark.parametrize(
    ("source", "place"),
    [
        (Source("", 0), ""),
        (Source("/home/me/model.py", 12), "model.py:12"),
        (Source(r"C:\me\model.py", 12), "model.py:12"),
        (Source("<string>", 1), "<string>:1"),
    ],
)
def test_a_place_is_short_and_empty_when_nothing_is_known(source: Source, place: str) -> None:
    assert source.place == str(source) == place


def test_a_report_without_a_name_is_of_a_program() -> None:
    assert Report(name="").headline().startswith("program: 0 writes")


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        ((1 << 20) - 1, "1.0 MiB"),
        (1 << 20, "1.0 MiB"),
        (3 << 29, "1.5 GiB"),
        (5 << 40, "5.0 TiB"),
        (1 << 60, "1048576.0 TiB"),
    ],
)
def test_amounts_are_in_binary_units(count: int, text: str) -> None:
    assert amount(count) == text


def test_a_decision_in_words_names_the_line_the_reader_and_the_remedy() -> None:
    blocked = decision(
        7,
        256,
        reason="the row is read later",
        do="read it before",
        source=Source("/home/me/model.py", 12, "step", "x.add_(1)"),
        conflict=Conflict("mul", "x version 0", "add_", Source("model.py", 14)),
    )
    assert describe(blocked) == [
        "#7 add_(self): saved, 256 B",
        "    at     model.py:12 in step    x.add_(1)",
        "    reader mul reads x version 0, model.py:14",
        "    why    the row is read later",
        "    do     read it before",
    ]


def test_a_decision_with_nothing_to_say_is_one_line() -> None:
    assert describe(decision(1, 0)) == ["#1 add_(self): in place, 0 B"]


def test_the_headline_counts_writes_copies_and_bytes() -> None:
    report = Report(name="step", decisions=[decision(1, 0), decision(2, 2048), decision(3, None)])
    assert report.headline() == "step: 3 writes, 1 in place, 2 copied; 2.0 KiB cloned, 192 B avoided"
    assert [copy.id for copy in report.copies] == [2, 3]


def test_the_text_of_a_report_holds_copies_failures_and_the_fallback() -> None:
    report = Report(
        decisions=[decision(1, 0), decision(2, 256)],
        verdicts=[Verdict("ownership", True), Verdict("values", False, ("output 0 differs",))],
        fallback="ownership failed",
    )
    text = str(report)
    assert "#2 add_(self): saved" in text
    assert "#1" not in text
    assert "values: FAILED\n  output 0 differs" in text
    assert "ownership: ok" not in text
    assert "fallback: ownership failed" in text


def test_the_last_snapshot_of_a_step_is_found() -> None:
    first, second = Snapshot("cleanup", "functional", "a", 2), Snapshot("cleanup", "functional", "b", 1)
    report = Report(snapshots=[first, second])
    assert report.snapshot("cleanup") is second
    assert report.snapshot("lower") is None


def test_an_answer_is_true_when_the_check_is() -> None:
    assert Verdict("ownership", True)
    assert not Verdict("ownership", False)
