"""What a test imports from this repository exists: `make check` sees it without running a test."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

PROJECT = Path(__file__).parents[2]
ROOTS = ("include", "spark_jobs", "tests", "tests/spark", "tests/bench")
"""Folders from which tests import, the first that has a module."""
OTHERS = {"airflow"}
"""Packages that are installed, and whose names folders of tests have too."""


def find_module(name: str) -> Path | None:
    """Return the file or the folder of a module of this repository."""
    for root in ROOTS:
        path = PROJECT / root / name.replace(".", "/")
        if path.with_suffix(".py").is_file():
            return path.with_suffix(".py")
        if path.is_dir():
            return path
    return None


@cache
def names_of(path: Path) -> frozenset[str]:
    """Return the names that a module has: those that its statements bind, and its submodules."""
    inner = {each.stem for each in path.iterdir()} if path.is_dir() else set()
    file = path / "__init__.py" if path.is_dir() else path
    if not file.is_file():
        return frozenset(inner)
    for node in ast.walk(ast.parse(file.read_bytes())):
        match node:
            case ast.FunctionDef() | ast.ClassDef() | ast.AsyncFunctionDef():
                inner.add(node.name)
            case ast.Name(ctx=ast.Store()):
                inner.add(node.id)
            case ast.alias():
                inner.add((node.asname or node.name).split(".")[0])
    return frozenset(inner)


def missing_of(file: Path) -> Iterator[str]:
    """Yield what a file imports from this repository that is not there."""
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            module = find_module(node.module)
            names = names_of(module) if module else ()
            first = node.module.split(".")[0]
            for alias in node.names if first not in OTHERS and find_module(first) else ():
                if alias.name not in names:
                    yield f"{file.relative_to(PROJECT)}:{node.lineno}: {node.module}.{alias.name}"


def test_each_name_that_a_test_imports_exists() -> None:
    files = sorted((PROJECT / "tests").rglob("*.py"))

    assert [missing for file in files for missing in missing_of(file)] == []
