"""A `Report` as one page: the story step by step, memory over time, and every decision. No network, no other file.

Reads `reink.report` only, never torch. What a user wrote reaches the page in two ways: through templates that escape
it, and as JSON that the scripts put into the page as text, never as markup. Only the page's own script may run.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from math import prod

from jinja2 import Environment, Template
from markupsafe import Markup

from reink.report import Decision, Region, Report, Source, amount
from reink.show.words import MEANING, REASONS, TERMS

# Loaded in this order, as one script.
SCRIPTS = ("data.js", "ledger.js", "stage.js", "chart.js", "table.js", "player.js")
# Copies that get a paragraph above the story; the table has every one.
MOST_CARDS = 20


def page(report: Report) -> str:
    """`report` as an HTML document that needs nothing else."""
    script = _script()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return _template().render(
        report=report,
        name=report.name or "program",
        cards=[_card(d) for d in report.copies[:MOST_CARDS]],
        hidden=max(0, len(report.copies) - MOST_CARDS),
        kept=len(report.decisions) - len(report.copies),
        cloned=amount(report.bytes_cloned),
        symbolic=sum(d.bytes is None for d in report.decisions),
        avoided=amount(report.bytes_avoided),
        bound="" if report.lower_bound is None or not report.bytes_cloned else amount(report.lower_bound),
        meaning=MEANING,
        reasons=REASONS,
        terms=TERMS,
        style=Markup(_read("style.css")),
        script=Markup(script),
        digest=digest,
        values=Markup(_embedded(report)),
    )


def frame(report: Report) -> str:
    """The page inside an element of another page, where it can neither see nor change anything."""
    title = html.escape(f"reink: {report.name or 'program'}", quote=True)
    style = "width:100%;height:860px;border:1px solid #8886;border-radius:8px"
    inner = html.escape(page(report), quote=True)
    return f'<iframe title="{title}" sandbox="allow-scripts" style="{style}" srcdoc="{inner}"></iframe>'


@dataclass(frozen=True, slots=True)
class Card:
    """A copy that is left, in the words of the page: how much, which line causes it, which needs it, what to change."""

    id: int
    size: str
    outcome: str
    operator: str
    source: Source | None
    reader: str
    read_source: Source | None
    needed: str
    definition: str
    why: str
    do: str


def _card(decision: Decision) -> Card:
    conflict = decision.conflict
    return Card(
        decision.id,
        decision.size if decision.bytes is None else amount(decision.bytes),
        decision.outcome,
        f"{decision.operator}({decision.argument})",
        _known(decision.source),
        conflict.read if conflict else "",
        _known(conflict.read_source) if conflict else None,
        _size(conflict.needed) if conflict else "",
        conflict.definition if conflict else "",
        decision.reason,
        decision.do,
    )


def _known(source: Source | None) -> Source | None:
    return source if source and source.place else None


def _size(region: Region | None) -> str:
    """How many bytes a region has; nothing when that is symbolic."""
    return amount(prod(count for count, _ in region.dims)) if region else ""


def _embedded(report: Report) -> str:
    """The report as JSON that cannot end the element that it stands in."""
    text = json.dumps(report.to_json(), separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


@cache
def _template() -> Template:
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(_read("page.html"))


@cache
def _script() -> str:
    return "\n".join(_read(name) for name in SCRIPTS)


def _read(name: str) -> str:
    return (files("reink.show") / "viewer" / name).read_text(encoding="utf-8")
