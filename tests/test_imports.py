"""The house by its imports: those inside of functions and for types alone are in it too."""

import ast
from collections.abc import Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "hotlap"
FLOORS = (
    ("records",),
    ("runs",),
    ("agent", "launch"),
    ("diagnose", "levers", "memory", "profilers", "source", "trace"),
    ("experiment",),
    ("guard", "patch", "scale", "tune"),
    ("cli", "dashboard", "export", "report", "testing"),
)
"""Of DESIGN.md, lowest first; `runs` lies between the records and who writes them."""


def modules(source: Path) -> dict[str, ast.Module]:
    """The modules of a package by their dotted names."""
    named = {(source.name, *path.relative_to(source).with_suffix("").parts): path for path in source.rglob("*.py")}
    return {
        ".".join(parts).removesuffix(".__init__"): ast.parse(path.read_text(encoding="utf-8"))
        for parts, path in named.items()
    }


def imported(name: str, tree: ast.Module, known: Mapping[str, ast.Module]) -> Iterator[str]:
    """What a module imports of its package, wherever in it the statement stands."""
    package = name if any(other.startswith(f"{name}.") for other in known) else name.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            found = (f"{base}.{alias.name}" if f"{base}.{alias.name}" in known else base for alias in node.names)
            yield from (one for one in found if one in known)


def graph(source: Path) -> dict[str, set[str]]:
    """By module, what it imports of its package."""
    known = modules(source)
    return {name: {*imported(name, tree, known)} - {name} for name, tree in known.items()}


def circle(imports: Mapping[str, set[str]]) -> Sequence[str]:
    """Modules that import each other in a circle; () where none do."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return list(error.args[1])
    return ()


@pytest.fixture(scope="module")
def imports() -> dict[str, set[str]]:
    return graph(SOURCE)


def test_no_modules_import_each_other(imports: dict[str, set[str]]) -> None:
    assert len(imports) > 300
    assert circle(imports) == ()


def test_no_packages_import_each_other(imports: dict[str, set[str]]) -> None:
    packages: dict[str, set[str]] = {package: set() for packages in FLOORS for package in packages}
    for name, ones in imports.items():
        package = name.split(".")[1:2]
        if package and package[0] in packages:
            packages[package[0]] |= {one.split(".")[1] for one in ones if "." in one} - {*package}
    assert circle(packages) == ()


def test_no_floor_imports_one_above_it(imports: dict[str, set[str]]) -> None:
    floor = {package: at for at, packages in enumerate(FLOORS) for package in packages}
    inner = [name for name in imports if name.count(".") > 1 or name.split(".")[-1] in floor]
    assert {name.split(".")[1] for name in inner} == {*floor}, "each package has a floor"
    climbs = [
        (name, one)
        for name in inner
        for one in imports[name]
        if one.count(".") and floor.get(one.split(".")[1], 0) > floor[name.split(".")[1]]
    ]
    assert not climbs


@pytest.mark.parametrize("name", ["Unfit", "plain", "cache_folder", "open_run"])
def test_one_thing_has_one_definition(name: str) -> None:
    kinds = (ast.FunctionDef, ast.ClassDef)
    found = [
        module
        for module, tree in modules(SOURCE).items()
        if any(isinstance(one, kinds) and one.name == name for one in tree.body)
    ]
    assert len(set(found) - {"hotlap"}) == 1, found  # which hands `open_run` on, without importing it


@pytest.mark.parametrize(
    "text",
    [
        "from house.b import x",
        "from . import b",
        "from .b import x",
        "import house.b",
        "def f():\n    from .b import x",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .b import x",
    ],
)
def test_a_circle_is_seen(text: str, tmp_path: Path) -> None:
    house = tmp_path / "house"
    house.mkdir()
    (house / "__init__.py").write_text("")
    (house / "b.py").write_text("from .c import y")
    (house / "c.py").write_text("import os")
    (house / "a.py").write_text(text)
    assert graph(house)["house.a"] == {"house.b"}
    assert circle(graph(house)) == ()
    (house / "c.py").write_text("from .a import y")
    assert {*circle(graph(house))} == {"house.a", "house.b", "house.c"}
