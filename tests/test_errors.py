"""Every refusal has a code, every code has a page section, and nothing else has either."""

from __future__ import annotations

import ast
import pickle
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from reink.errors import CODES, ReinkError
from reink.show.words import REASONS

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "errors.md"


def sections(page: str) -> dict[str, str]:
    """The body of each section ``## code``, by code."""
    parts = re.split(r"^## (.+)$", page, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def literal_codes(source: str) -> Iterator[tuple[int, str]]:
    """Line and code of each ``ReinkError("code", ...)`` in `source`; a code in a variable is not seen."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name != "ReinkError":
            continue
        given = [*node.args[:1], *(k.value for k in node.keywords if k.arg == "code")]
        for value in given:
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield node.lineno, value.value


def test_each_code_has_a_section_and_each_section_a_code() -> None:
    codes = re.findall(r"^## (.+)$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert sorted(codes) == sorted(CODES)


@pytest.mark.parametrize("code", CODES)
def test_each_section_gives_cause_wrong_and_right(code: str) -> None:
    body = sections(PAGE.read_text(encoding="utf-8")).get(code, "")
    labels = re.findall(r"^\*\*(Cause|Wrong|Right)\.\*\*", body, flags=re.MULTILINE)
    assert labels == ["Cause", "Wrong", "Right"]
    wrong = body.split("**Wrong.**")[1].split("**Right.**")[0]
    right = body.split("**Right.**")[1]
    assert wrong.count("```") == 2
    assert right.count("```") == 2


def test_python_of_the_page_is_python() -> None:
    for code in re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S):
        compile(code, str(PAGE), "exec")


def test_codes_in_the_source_exist() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line} {code}"
        for path in sorted((ROOT / "src").rglob("*.py"))
        for line, code in literal_codes(path.read_text(encoding="utf-8"))
        if code not in CODES
    ]
    assert found == []


def test_the_search_for_codes_sees_each_form() -> None:
    source = "raise ReinkError('a', 'x')\nerrors.ReinkError(code='b', what='x')\nReinkError(code, 'x')\n"
    assert list(literal_codes(source)) == [(1, "a"), (2, "b")]


def test_the_page_explains_each_reason_for_a_copy() -> None:
    body = sections(PAGE.read_text(encoding="utf-8"))["strict-copy"]
    assert dict(re.findall(r"^\| (.+) \| (.+) \|$", body, flags=re.MULTILINE)[1:]) == REASONS


def test_text_names_what_where_why_do_and_code() -> None:
    error = ReinkError(
        "metadata-mutation",
        "cannot functionalize aten.resize_.default: it changes the size of a tensor that has views",
        where="model.py:12 in step    buf.resize_(8)",
        why="`row` is a view of `buf`\nafter the resize it has no place in it",
        do="clone() the view",
    )
    assert str(error).splitlines() == [
        "cannot functionalize aten.resize_.default: it changes the size of a tensor that has views",
        "  where  model.py:12 in step    buf.resize_(8)",
        "  why    `row` is a view of `buf`",
        "         after the resize it has no place in it",
        "  do     clone() the view",
        "  code   metadata-mutation   (docs/errors.md#metadata-mutation)",
    ]


def test_text_leaves_out_what_is_not_known() -> None:
    assert str(ReinkError("not-found", "no file model.py")).splitlines() == [
        "no file model.py",
        "  code   not-found   (docs/errors.md#not-found)",
    ]


def test_an_unlisted_code_is_our_mistake() -> None:
    with pytest.raises(AssertionError, match="no such code"):
        ReinkError("no-such-code", "anything")


def test_pickles_whole() -> None:
    error = ReinkError("strict-copy", "a copy remains", where="m.py:3", why="late reader", do="move it")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is ReinkError
    assert (again.code, again.what, again.where, again.why, again.do) == (
        error.code,
        error.what,
        error.where,
        error.why,
        error.do,
    )
    assert str(again) == str(error)
