"""Tries every operator of PyTorch's own database against eager, and writes docs/operators.md.

Usage: ``python docs/operators.py [--jobs N] [--samples N] [--only NAME]``; the exit status is 1 when an answer is wrong
or an error has no code. With ``--only`` nothing is written: each trial that is not right is printed instead.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from support.operator_database import DTYPES, FORMS, full_name, operators, run, trials

PAGE = Path(__file__).resolve().parent / "operators.md"
FAULTS = ("wrong", "crash")
# Where the first line of a page ends and the generated part begins.
_HEAD = """# Operators

Written by `make opdb`. Every entry of PyTorch's own operator database ({entries} of torch {torch}) is compiled by
reink's passes and compared with eager: results, strides, dtypes, which memory they share, and every byte of the inputs.
Dtypes: {dtypes}, where the entry supports them; up to {samples} samples each.

- **in place**: the in-place form on a view of a larger or rearranged tensor (reshaped, transposed, sliced), which is
  read afterwards;
- **view**: the results are written, and every input is read afterwards;
- **out**: the `out=` form writes into a slice of a larger tensor, which is read afterwards.

A number is how many programs were right. *refused* names the codes of [errors.md](errors.md) for the rest. *as written*
counts programs that run right but as they were captured, because a check could not follow them. A dash: there is no
such form, or eager refuses it.

| outcome | programs |
|---|---|
{totals}

| operator | in place | view | out |
|---|---|---|---|
"""

Counts = Counter[tuple[str, str, str]]


def tried(name_and_samples: tuple[str, int]) -> tuple[str, Counts, list[str]]:
    """Run every trial of the entry of this name; its counts by form, outcome and code, and what was not right."""
    name, samples = name_and_samples
    torch.set_num_threads(1)
    logging.getLogger("reink").setLevel(logging.CRITICAL)
    counts, notes = Counts(), list[str]()
    for entry in (e for e in operators() if full_name(e) == name):
        for trial in trials(entry, samples=samples):
            result = run(trial)
            if result is None:
                continue
            counts[trial.form, result.kind, result.code] += 1
            if result.kind != "right":
                notes.append(f"{result.kind} {result.code} {trial}\n{result.detail}")
    return name, counts, notes


def every(names: Sequence[str], samples: int, jobs: int) -> Iterator[tuple[str, Counts, list[str]]]:
    """`tried` for each name, in order."""
    work = [(name, samples) for name in names]
    if jobs < 2:
        yield from map(tried, work)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        yield from pool.map(tried, work, chunksize=4)


def _word(kind: str) -> str:
    return "as written" if kind == "fallback" else kind


def cell(counts: Counts, form: str) -> str:
    """What became of one form of an operator."""
    right = sum(n for (f, kind, _), n in counts.items() if f == form and kind == "right")
    words = [str(right)] if right else []
    for (found, kind, code), n in sorted(counts.items()):
        if found == form and kind != "right":
            words.append(f"{n} {_word(kind)}{f' `{code}`' if code else ''}")
    return ", ".join(words) or "-"


def page(rows: Sequence[tuple[str, Counts]], samples: int) -> str:
    """The whole of operators.md."""
    totals: Counter[str] = Counter()
    for _, counts in rows:
        for (_, kind, code), n in counts.items():
            totals[f"{_word(kind)} `{code}`" if code else _word(kind)] += n
    head = _HEAD.format(
        entries=len(operators()),
        torch=torch.__version__.split("+")[0],
        dtypes=", ".join(str(d).removeprefix("torch.") for d in DTYPES),
        samples=samples,
        totals="\n".join(f"| {kind} | {n} |" for kind, n in totals.most_common()),
    )
    lines = [f"| {name} | {' | '.join(cell(counts, form) for form in FORMS)} |" for name, counts in rows if counts]
    return head + "\n".join(lines) + "\n"


def main() -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--samples", type=int, default=3)
    parser.add_argument("--only", default="", help="part of an operator's name")
    given = parser.parse_args()
    names = sorted({full_name(e) for e in operators() if given.only in full_name(e)})
    rows: list[tuple[str, Counts]] = []
    faults = 0
    for name, counts, notes in every(names, given.samples, given.jobs):
        rows.append((name, counts))
        wrong = [n for n in notes if n.startswith(FAULTS)]
        faults += len(wrong)
        for note in notes if given.only else wrong:
            print(note, flush=True)
    if not given.only:
        PAGE.write_text(page(rows, given.samples))
    print(f"{sum(sum(c.values()) for _, c in rows)} programs of {len(names)} operators, {faults} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
