"""A sample of PyTorch's operator database: what ``make opdb`` does for all of it."""

from __future__ import annotations

import pytest
from support.library import LONG
from support.operator_database import full_name, operators, run, trials

# Of each dozen entries one is tried, another one each time that the database changes its order.
STRIDE = 1 if LONG else 12
# Always tried: each was wrong once, or is easy to get wrong.
NAMED = frozenset(
    {
        "_foreach_addcdiv",
        "_foreach_lerp",
        "as_strided_scatter",
        "expand_as",
        "index_put",
        "linalg.inv",
        "linalg.lu_solve",
        "masked_scatter",
        "nn.functional.dropout",
        "quantile",
        "reshape",
        "slice_scatter",
        "sort",
        "squeeze",
        "t",
        "to",
        "unfold",
    }
)
ENTRIES = [e for k, e in enumerate(operators()) if k % STRIDE == 0 or full_name(e) in NAMED]


@pytest.mark.parametrize("entry", ENTRIES, ids=full_name)
def test_operator_behaves_as_in_eager_or_is_refused_with_a_code(entry: object) -> None:
    for trial in trials(entry, samples=2):
        result = run(trial)
        assert result is None or result.kind not in ("wrong", "crash"), f"{trial}\n{result.detail}"


def test_the_sample_has_what_is_named() -> None:
    assert {full_name(e) for e in ENTRIES} >= NAMED
