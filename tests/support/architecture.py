"""The rules that the shape of src/reink keeps, read from its source without importing it.

Each rule is a function from modules to a list of complaints; `RULES` lists them.
"""

from __future__ import annotations

import ast
import graphlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeGuard

SOURCE = Path(__file__).resolve().parents[2] / "src"

LINES_OF_A_FILE = 500
LINES_OF_A_FUNCTION = 60
NESTING = 4

# Who may import whom, by the first name below `reink`. `reink` itself stands for the public names.
BELOW_PASSES = {"errors", "report", "core"}
BELOW_BACKENDS = BELOW_PASSES | {"passes", "check", "options", "story", "pipeline"}
BELOW_CLI = BELOW_BACKENDS | {"backends", "show"}
BELOW_TRUST = BELOW_CLI | {"api", "judge"}
LAYERS: dict[str, set[str]] = {
    "errors": set(),
    "files": set(),
    "logs": set(),
    "plain": set(),
    "report": {"errors", "files", "plain"},
    "core": BELOW_PASSES,
    "passes": BELOW_PASSES,
    "check": BELOW_PASSES | {"check"},
    "options": {"errors"},
    "story": BELOW_PASSES | {"passes"},
    "pipeline": BELOW_BACKENDS,
    "backends": BELOW_BACKENDS | {"backends"},
    "judge": BELOW_PASSES,
    "show": {"errors", "report", "show"},
    "api": BELOW_CLI,
    "verification": BELOW_TRUST | {"verification"},
    "fuzz": BELOW_TRUST | {"fuzz"},
    "reink": BELOW_TRUST | {"verification", "logs"},
    "cli": BELOW_TRUST | {"files", "verification", "fuzz", "reink", "cli"},
}

# No pass imports a pass. These files are parts of one, split off for size.
PARTS_OF_A_PASS = {
    "reink.passes.reinplace": {
        "reink.passes.by_value",
        "reink.passes.in_place",
        "reink.passes.needed",
        "reink.passes.optimum",
        "reink.passes.order",
        "reink.passes.out_forms",
        "reink.passes.placement",
        "reink.passes.planned",
        "reink.passes.results",
        "reink.passes.waiting",
        "reink.passes.write_back",
    },
    "reink.passes.by_value": {"reink.passes.write_back"},
    "reink.passes.in_place": {"reink.passes.write_back"},
    "reink.passes.needed": {"reink.passes.order"},
    "reink.passes.out_forms": {"reink.passes.in_place", "reink.passes.placement", "reink.passes.write_back"},
    "reink.passes.placement": {
        "reink.passes.needed",
        "reink.passes.optimum",
        "reink.passes.order",
        "reink.passes.sharing",
        "reink.passes.write_back",
    },
    "reink.passes.results": {
        "reink.passes.in_place",
        "reink.passes.needed",
        "reink.passes.placement",
        "reink.passes.write_back",
    },
    "reink.passes.waiting": {"reink.passes.in_place", "reink.passes.placement", "reink.passes.write_back"},
    "reink.passes.write_back": {"reink.passes.needed"},
    "reink.passes.capture": {"reink.passes.user_code"},
    "reink.passes.destinations": {"reink.passes.out_forms"},
    "reink.passes.doubtful": {"reink.passes.refusals"},
    "reink.passes.functionalize": {
        "reink.passes.doubtful",
        "reink.passes.metadata",
        "reink.passes.mutable_calls",
        "reink.passes.outputs",
        "reink.passes.refusals",
        "reink.passes.subgraphs",
    },
    "reink.passes.loops": {"reink.passes.in_place", "reink.passes.placement", "reink.passes.reinplace"},
    "reink.passes.metadata": {"reink.passes.outputs", "reink.passes.refusals"},
    "reink.passes.mutable_calls": {"reink.passes.refusals"},
    "reink.passes.subgraphs": {"reink.passes.refusals"},
}

STANDARD_LIBRARY_ONLY = {"errors", "files", "logs", "plain", "report"}
WITHOUT_TORCH = {"errors", "files", "logs", "plain", "report", "show"}

# The files that may name what torch does not promise to keep; that of Inductor takes seconds to load. Operators
# (`torch.ops`) are no modules.
INTERNALS = "reink.core.torch_internals"
INTERNALS_OF_INDUCTOR = "reink.core.inductor_internals"
UNPROMISED = ("torch.fx.experimental",)

BLOCKS = (
    ast.If,
    ast.For,
    ast.AsyncFor,
    ast.While,
    ast.With,
    ast.AsyncWith,
    ast.Try,
    ast.TryStar,
    ast.Match,
)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True, slots=True)
class Module:
    """A source file: its dotted name, whether it is a package's __init__, its text and syntax tree."""

    name: str
    is_package: bool
    text: str
    tree: ast.Module

    @classmethod
    def of(cls, name: str, text: str, *, is_package: bool = False) -> Module:
        return cls(name, is_package, text, ast.parse(text))

    def at(self, line: int) -> str:
        return f"{self.name}:{line}"


@dataclass(frozen=True, slots=True)
class Import:
    """One imported name: ``from a import b`` is ``a.b``. `place` is where it stands, so when it runs."""

    line: int
    target: str
    place: Literal["top", "types", "local"]


def read_modules() -> list[Module]:
    """Every module of src/reink."""
    found = []
    for path in sorted((SOURCE / "reink").rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        found.append(Module.of(name, path.read_text(encoding="utf-8"), is_package=is_package))
    return found


def imports(module: Module) -> list[Import]:
    """All imports of `module`, wherever they stand."""
    found: list[Import] = []

    def visit(node: ast.AST, place: Literal["top", "types", "local"]) -> None:
        if isinstance(node, ast.Import | ast.ImportFrom):
            found.extend(Import(node.lineno, target, place) for target in targets(module, node))
            return
        if isinstance(node, (*FUNCTIONS, ast.Lambda)):
            place = "local"
        guarded = node.body if place == "top" and is_type_checking(node) else []
        for child in ast.iter_child_nodes(node):
            visit(child, "types" if child in guarded else place)

    visit(module.tree, "top")
    return found


def is_type_checking(node: ast.AST) -> TypeGuard[ast.If]:
    """Is this ``if TYPE_CHECKING:``?"""
    return isinstance(node, ast.If) and ast.unparse(node.test).split(".")[-1] == "TYPE_CHECKING"


def targets(module: Module, node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    """Absolute dotted names that the statement imports."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
        return
    base = node.module or ""
    if node.level:
        package = module.name.split(".")
        keep = len(package) - node.level + module.is_package
        base = ".".join([*package[:keep], *([base] if base else [])])
    yield from (f"{base}.{alias.name}" for alias in node.names)


def layer(name: str) -> str:
    """The layer of a dotted name below `reink`; a public name counts as ``reink``."""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in LAYERS else "reink"


def is_own(target: str) -> bool:
    return target.split(".")[0] == "reink"


# ---- rules ---------------------------------------------------------------------------------------------


def every_module_has_a_layer(modules: list[Module]) -> list[str]:
    return [
        f"{m.name} has no layer: give it a row in LAYERS"
        for m in modules
        if m.name != "reink" and m.name.split(".")[1] not in LAYERS
    ]


def layers_point_down(modules: list[Module]) -> list[str]:
    """Imports go down the table LAYERS; a pass imports itself and its own parts, no other pass."""
    found = []
    for module in modules:
        for entry in imports(module):
            if not is_own(entry.target):
                continue
            above, below = layer(module.name), layer(entry.target)
            if below not in LAYERS[above] and not is_same_pass(module.name, entry.target):
                found.append(f"{module.at(entry.line)} ({above}) imports {entry.target} ({below})")
    return found


def is_same_pass(importer: str, target: str) -> bool:
    """Do both belong to one step: the same file or package in passes/, or a listed part of it?"""
    step, other = (".".join(name.split(".")[:3]) for name in (importer, target))
    if not (step.startswith("reink.passes.") and other.startswith("reink.passes.")):
        return False
    return other == step or other in PARTS_OF_A_PASS.get(step, set())


def errors_and_report_need_only_the_standard_library(modules: list[Module]) -> list[str]:
    return [
        f"{m.at(entry.line)} imports {entry.target}"
        for m in modules
        if layer(m.name) in STANDARD_LIBRARY_ONLY
        for entry in imports(m)
        if not is_own(entry.target) and entry.target.split(".")[0] not in sys.stdlib_module_names
    ]


def a_report_opens_without_torch(modules: list[Module]) -> list[str]:
    return [
        f"{m.at(entry.line)} imports {entry.target}"
        for m in modules
        if layer(m.name) in WITHOUT_TORCH
        for entry in imports(m)
        if entry.target.split(".")[0] == "torch"
    ]


def no_import_cycles(modules: list[Module]) -> list[str]:
    """Imports that run when a module loads form no cycle; those for types only do not run."""
    known = {m.name for m in modules}
    graph: dict[str, set[str]] = {}
    for module in modules:
        loaded = {owner(e.target, known) for e in imports(module) if e.place == "top"}
        graph[module.name] = {name for name in loaded if name and name != module.name}
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return [" <- ".join(error.args[1])]
    return []


def owner(target: str, known: set[str]) -> str:
    """The module that holds `target`: its longest prefix among `known`, or the empty string."""
    parts = target.split(".")
    names = (".".join(parts[:end]) for end in range(len(parts), 0, -1))
    return next((name for name in names if name in known), "")


def no_local_imports(modules: list[Module]) -> list[str]:
    """Imports stand at the top; the commands of the command line may import what only they need."""
    return [
        f"{m.at(entry.line)} imports {entry.target} inside a function"
        for m in modules
        if layer(m.name) != "cli"
        for entry in imports(m)
        if entry.place == "local"
    ]


def files_are_short(modules: list[Module]) -> list[str]:
    counts = [(m.name, len(m.text.splitlines())) for m in modules]
    return [f"{name}: {count} lines" for name, count in counts if count >= LINES_OF_A_FILE]


def functions(module: Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(module.tree):
        if isinstance(node, FUNCTIONS):
            yield node


def functions_are_short(modules: list[Module]) -> list[str]:
    """Lines count from ``def`` to the last statement, docstring included."""
    found = []
    for module in modules:
        for function in functions(module):
            count = (function.end_lineno or 0) - function.lineno + 1
            if count >= LINES_OF_A_FUNCTION:
                found.append(f"{module.at(function.lineno)} {function.name}: {count} lines")
    return found


def functions_are_flat(modules: list[Module]) -> list[str]:
    found = []
    for module in modules:
        for function in functions(module):
            levels = nesting(function)
            if levels > NESTING:
                found.append(f"{module.at(function.lineno)} {function.name}: {levels} levels")
    return found


def nesting(node: ast.AST, level: int = 0) -> int:
    """How deep control flow nests below `node`; functions and classes inside are not entered."""
    deepest = level
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (*FUNCTIONS, ast.ClassDef)):
            continue
        opens = isinstance(child, BLOCKS) and not is_elif(node, child)
        deepest = max(deepest, nesting(child, level + opens))
    return deepest


def is_elif(parent: ast.AST, child: ast.stmt) -> bool:
    """Does `child` continue the chain of `parent`? An ``if`` inside an ``else:`` is indented: it does not."""
    if not (isinstance(parent, ast.If) and isinstance(child, ast.If)):
        return False
    return parent.orelse == [child] and parent.col_offset == child.col_offset


def torch_internals_have_one_door(modules: list[Module]) -> list[str]:
    """What torch does not promise to keep is named in one file, whose facts the tests pin."""
    found = set()
    for module in modules:
        if module.name in (INTERNALS, INTERNALS_OF_INDUCTOR):
            continue
        for line, path in torch_paths(module):
            private = private_part(path)
            if private:
                found.add(f"{module.at(line)} uses {private}: import it from {INTERNALS}")
    return sorted(found)


def torch_paths(module: Module) -> Iterator[tuple[int, str]]:
    """Every dotted path into torch that the module imports, names, or gives to `import_module`."""
    names = {}
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for alias, target in zip(node.names, targets(module, node), strict=True):
                yield node.lineno, target
                plain = isinstance(node, ast.Import) and not alias.asname
                names[alias.asname or alias.name.split(".")[0]] = target.split(".")[0] if plain else target
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Attribute):
            head, _, rest = ast.unparse(node).partition(".")
            if head in names:
                yield node.lineno, f"{names[head]}.{rest}"
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            given = node.args[0] if node.args else None
            if isinstance(given, ast.Constant) and isinstance(given.value, str):
                yield node.lineno, given.value


def private_part(path: str) -> str:
    """The shortest prefix of a path into torch that is not public, or the empty string."""
    parts = path.split(".")
    if parts[0] != "torch" or parts[:2] == ["torch", "ops"]:
        return ""
    for end in range(2, len(parts) + 1):
        prefix, last = ".".join(parts[:end]), parts[end - 1]
        is_private = last.startswith("_") and not last.endswith("__")
        if is_private or prefix in UNPROMISED:
            return prefix
    return ""


Rule = Callable[[list[Module]], list[str]]

RULES: list[Rule] = [
    every_module_has_a_layer,
    layers_point_down,
    errors_and_report_need_only_the_standard_library,
    a_report_opens_without_torch,
    no_import_cycles,
    no_local_imports,
    files_are_short,
    functions_are_short,
    functions_are_flat,
    torch_internals_have_one_door,
]
