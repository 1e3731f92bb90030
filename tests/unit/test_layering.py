"""Imports point down the list of rooms only, as docs/design.md says."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "homespecd"

# From the top down; a room may import itself and what is below it.
ROOMS = (
    "cli",
    "daemon",
    "api",
    "worker",
    "governor",
    "drafters",
    "runtime",
    "decoding",
    "bundle",
    "config",
    "errors",
)
# Third-party packages that only some rooms may know.
KEPT_TO = {
    "onnxruntime": {"runtime"},
    "gguf": {"bundle"},
    "onnx": {"bundle"},
    "onnx_ir": {"bundle"},
    "safetensors": {"bundle"},
    "aiohttp": {"api", "daemon"},
    "rich": {"cli"},
    "llguidance": {"decoding"},
}
# An optional extra: the service starts without them, so nothing imports them when it is loaded.
OPTIONAL = {"gguf", "onnx", "onnx_ir", "safetensors"}
MODULES = sorted(PACKAGE.rglob("*.py"))


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(module: str) -> str:
    """ "homespecd.worker.engine" → "worker"; the package itself is below every room."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


def imports(tree: ast.AST) -> Iterator[str]:
    """Dotted names of all that is imported, wherever in the module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            assert node.module is not None
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def is_type_checking(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def executed_at_import(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that run when the module is imported, those in `if` and `try` too."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or is_type_checking(node):
            continue
        yield node
        for field in ("body", "orelse", "finalbody", "handlers"):
            inner = getattr(node, field, [])
            for one in inner:
                yield from executed_at_import(
                    one.body if isinstance(one, ast.ExceptHandler) else [one]
                )


def imported_at_import(path: Path) -> set[str]:
    tree = ast.parse(path.read_text("utf-8"))
    found: set[str] = set()
    for node in executed_at_import(tree.body):
        if isinstance(node, ast.Import | ast.ImportFrom):
            found.update(imports(node))
    return found


def test_every_room_is_on_the_list() -> None:
    found = {room_of(module_name(path)) for path in MODULES} - {""}
    assert found == set(ROOMS)


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_imports_point_down(path: Path) -> None:
    room = room_of(module_name(path))
    allowed = set(ROOMS[ROOMS.index(room) :]) if room else set()
    upward = {
        name
        for name in imports(ast.parse(path.read_text("utf-8")))
        if name.startswith("homespecd.") and name != "homespecd.__version__"
        if room_of(name) not in allowed
    }
    assert upward == set()


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_packages_stay_in_their_rooms(path: Path) -> None:
    room = room_of(module_name(path))
    tops = {name.split(".")[0] for name in imports(ast.parse(path.read_text("utf-8")))}
    strangers = {top for top in tops if room not in KEPT_TO.get(top, {room})}
    assert strangers == set()


def graph() -> dict[str, set[str]]:
    """Module → the project's modules that are imported when it is imported."""
    names = {module_name(path) for path in MODULES}
    edges: dict[str, set[str]] = {}
    for path in MODULES:
        module = module_name(path)
        targets = set()
        for name in imported_at_import(path):
            # `from package import module` names a module, `from module import thing` does not.
            target = name if name in names else name.rpartition(".")[0]
            if target in names and target != module:
                targets.add(target)
        edges[module] = targets
    return edges


def test_no_module_imports_itself_in_a_circle() -> None:
    edges = graph()
    finished: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " → ".join((*path[path.index(module) :], module))
        if module in finished:
            return
        for target in sorted(edges[module]):
            visit(target, (*path, module))
        finished.add(module)

    for module in sorted(edges):
        visit(module, ())


def reachable(start: str) -> set[str]:
    """Everything of the project that importing `start` imports, packages on the way included."""
    edges, seen, waiting = graph(), set[str](), [start]
    while waiting:
        module = waiting.pop()
        if module in seen:
            continue
        seen.add(module)
        waiting += edges[module]
        parent = module.rpartition(".")[0]
        if parent:
            waiting.append(parent)
    return seen


def third_party(modules: set[str]) -> set[str]:
    by_name = {module_name(path): path for path in MODULES}
    return {
        name.split(".")[0] for module in modules for name in imported_at_import(by_name[module])
    }


@pytest.mark.parametrize("entry", ["homespecd.daemon.main", "homespecd.worker.__main__"])
def test_the_service_starts_without_the_import_extra(entry: str) -> None:
    assert third_party(reachable(entry)) & OPTIONAL == set()


@pytest.mark.parametrize("entry", ["homespecd.daemon.main", "homespecd.cli.commands"])
def test_supervisor_and_commands_start_without_onnxruntime(entry: str) -> None:
    assert "onnxruntime" not in third_party(reachable(entry))
    assert OPTIONAL.isdisjoint(third_party(reachable(entry)))
