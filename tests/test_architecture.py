"""The source keeps the rules of architecture, and the rules see what they are for.

The table `CAUGHT` shows every rule a source that breaks it, `FINE` a close relative that does not.
"""

from __future__ import annotations

import pytest
from support.architecture import (
    INTERNALS,
    LINES_OF_A_FILE,
    LINES_OF_A_FUNCTION,
    PARTS_OF_A_PASS,
    RULES,
    Module,
    Rule,
    a_report_opens_without_torch,
    errors_and_report_need_only_the_standard_library,
    every_module_has_a_layer,
    files_are_short,
    functions_are_flat,
    functions_are_short,
    imports,
    layers_point_down,
    no_import_cycles,
    no_local_imports,
    read_modules,
    torch_internals_have_one_door,
)


@pytest.fixture(scope="module")
def modules() -> list[Module]:
    return read_modules()


def test_there_is_something_to_read(modules: list[Module]) -> None:
    assert {"reink.errors", "reink.report"} <= {m.name for m in modules}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_source_keeps(rule: Rule, modules: list[Module]) -> None:
    complaints = rule(modules)
    assert not complaints, "\n" + "\n".join(complaints)


def test_parts_of_a_pass_exist(modules: list[Module]) -> None:
    """A row of the table of exceptions that no file needs is taken out."""
    imported = {(m.name, ".".join(e.target.split(".")[:3])) for m in modules for e in imports(m)}
    rows = {(step, part) for step, parts in PARTS_OF_A_PASS.items() for part in parts}
    assert rows <= imported


# ---- the rules themselves ------------------------------------------------------------------------------

DEEP = "def f(a):\n" + "".join(f"{'    ' * n}if a:\n" for n in range(1, 6)) + "    " * 6 + "pass\n"
FLAT = "def f(a):\n    if a:\n        pass\n" + "    elif a:\n        pass\n" * 6
ELSE_IF = "def f(a):\n" + "".join(f"{'    ' * n}if a:\n{'    ' * n}    pass\n{'    ' * n}else:\n" for n in range(1, 6))

CAUGHT: list[tuple[Rule, dict[str, str], str]] = [
    (every_module_has_a_layer, {"reink.utils": ""}, "reink.utils has no layer"),
    (layers_point_down, {"reink.errors": "import reink.report"}, "(report)"),
    (layers_point_down, {"reink.report": "from reink.core import region"}, "(core)"),
    (layers_point_down, {"reink.core.region": "from ..passes import lower"}, "(passes)"),
    (layers_point_down, {"reink.passes.lower": "from reink.passes.cleanup import x"}, "reink.passes.cleanup"),
    (layers_point_down, {"reink.passes.lower": "from . import order"}, "reink.passes.order"),
    (
        layers_point_down,
        {"reink.passes.order": "from reink.passes import reinplace"},
        "reink.passes.reinplace",
    ),
    (layers_point_down, {"reink.passes.lower": "import reink.pipeline"}, "(pipeline)"),
    (layers_point_down, {"reink.passes.lower": "import reink.check"}, "(check)"),
    (layers_point_down, {"reink.check": "from reink.passes import lower"}, "(passes)"),
    (layers_point_down, {"reink.check": "from reink import functionalize"}, "(reink)"),
    (layers_point_down, {"reink.pipeline": "def f():\n    import reink.backends.dynamo"}, "(backends)"),
    (layers_point_down, {"reink.pipeline": "import reink.show.terminal"}, "(show)"),
    (layers_point_down, {"reink.show.html": "from reink.core.region import Region"}, "(core)"),
    (layers_point_down, {"reink.backends.dynamo": "from reink.cli import main"}, "(cli)"),
    (layers_point_down, {"reink.core.a": "if TYPE_CHECKING:\n    import reink.cli"}, "(cli)"),
    (errors_and_report_need_only_the_standard_library, {"reink.report": "import rich"}, "rich"),
    (a_report_opens_without_torch, {"reink.show.html": "from torch import fx"}, "torch.fx"),
    (a_report_opens_without_torch, {"reink.show.html": "def f():\n    import torch.fx"}, "torch.fx"),
    (
        no_import_cycles,
        {"reink.core.a": "from . import b", "reink.core.b": "import reink.core.a"},
        "reink.core.b",
    ),
    (no_local_imports, {"reink.core.a": "def f():\n    import json"}, "json inside a function"),
    (
        no_local_imports,
        {"reink.core.a": "class A:\n    def f(self):\n        if 1:\n            import json"},
        ":4",
    ),
    (files_are_short, {"reink.core.a": "x = 1\n" * LINES_OF_A_FILE}, "500 lines"),
    (
        functions_are_short,
        {"reink.core.a": "def f():\n" + "    x = 1\n" * (LINES_OF_A_FUNCTION - 1)},
        "f: 60 lines",
    ),
    (functions_are_flat, {"reink.core.a": DEEP}, "f: 5 levels"),
    (functions_are_flat, {"reink.core.a": ELSE_IF + "    " * 6 + "pass\n"}, "f: 5 levels"),
    (torch_internals_have_one_door, {"reink.core.a": "import torch._dynamo"}, "torch._dynamo"),
    (
        torch_internals_have_one_door,
        {"reink.core.a": "from torch._subclasses import FakeTensor"},
        "torch._subclasses",
    ),
    (torch_internals_have_one_door, {"reink.core.a": "from torch import _C"}, "torch._C"),
    (
        torch_internals_have_one_door,
        {"reink.core.a": "import torch.utils._pytree as p"},
        "torch.utils._pytree",
    ),
    (
        torch_internals_have_one_door,
        {"reink.core.a": "from torch.utils import _pytree"},
        "torch.utils._pytree",
    ),
    (
        torch_internals_have_one_door,
        {"reink.core.a": "from torch.fx.experimental import proxy_tensor"},
        "experimental",
    ),
    (
        torch_internals_have_one_door,
        {"reink.core.a": "import torch\nx = torch._C._get()"},
        ":2 uses torch._C:",
    ),
    (
        torch_internals_have_one_door,
        {"reink.core.a": "import torch.fx as fx\nx = fx.experimental.y"},
        ":2 uses",
    ),
    (
        torch_internals_have_one_door,
        {"reink.core.a": "from torch import fx\nx = fx._pytree"},
        "torch.fx._pytree",
    ),
    (
        torch_internals_have_one_door,
        {"reink.core.a": "m = importlib.import_module('torch._inductor.ir')"},
        "_inductor",
    ),
]

FINE: list[tuple[Rule, dict[str, str]]] = [
    (every_module_has_a_layer, {"reink": "", "reink.core": "", "reink.core.a": "", "reink.check.oracle": ""}),
    (
        layers_point_down,
        {"reink.core.a": "from . import b\nfrom reink.errors import ReinkError\nimport torch"},
    ),
    (
        layers_point_down,
        {"reink.passes.reinplace": "from reink.passes.order import x\nfrom . import placement"},
    ),
    (layers_point_down, {"reink.passes.lower.calls": "from reink.passes.lower.names import x"}),
    (
        layers_point_down,
        {"reink.check.oracle": "from reink.check.bytes import x\nfrom reink.core import program"},
    ),
    (layers_point_down, {"reink.cli": "import reink\nfrom reink.show import html"}),
    (errors_and_report_need_only_the_standard_library, {"reink.report": "import json\nimport reink.errors"}),
    (a_report_opens_without_torch, {"reink.show.html": "import jinja2", "reink.core.a": "import torch"}),
    (
        no_import_cycles,
        {"reink.core.a": "import reink.core.b", "reink.core.b": "if TYPE_CHECKING:\n    import reink.core.a"},
    ),
    (
        no_local_imports,
        {"reink.cli": "def f():\n    import json", "reink.core.a": "try:\n    import json\nfinally: 1"},
    ),
    (files_are_short, {"reink.core.a": "x = 1\n" * (LINES_OF_A_FILE - 1)}),
    (functions_are_short, {"reink.core.a": "def f():\n" + "    x = 1\n" * (LINES_OF_A_FUNCTION - 2)}),
    (functions_are_flat, {"reink.core.a": FLAT}),
    (torch_internals_have_one_door, {INTERNALS: "from torch._subclasses import FakeTensor"}),
    (torch_internals_have_one_door, {"reink.core.a": f"from {INTERNALS} import FakeTensor, _pytree"}),
    (
        torch_internals_have_one_door,
        {"reink.core.a": "import torch\nx = torch.ops.aten._unsafe_view.default"},
    ),
    (torch_internals_have_one_door, {"reink.core.a": "import torch\nx = torch.__version__, torch.fx.Node"}),
]


def synthetic(sources: dict[str, str]) -> list[Module]:
    return [Module.of(name, text, is_package=name == "reink.core") for name, text in sources.items()]


@pytest.mark.parametrize(("rule", "sources", "words"), CAUGHT)
def test_rule_catches(rule: Rule, sources: dict[str, str], words: str) -> None:
    complaints = rule(synthetic(sources))
    assert len(complaints) == 1
    assert words in complaints[0]


@pytest.mark.parametrize(("rule", "sources"), FINE)
def test_rule_lets_pass(rule: Rule, sources: dict[str, str]) -> None:
    assert rule(synthetic(sources)) == []


def test_every_rule_is_shown_both_sides() -> None:
    assert {row[0] for row in CAUGHT} == {row[0] for row in FINE} == set(RULES)
