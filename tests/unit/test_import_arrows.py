"""Imports point one way: dags → include/frazil_airflow → include/frazil ← spark_jobs."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
ROOTS = (PROJECT / "include", PROJECT / "spark_jobs")
HEAVY = {
    "confluent_kafka",
    "great_expectations",
    "numpy",
    "pandas",
    "pyarrow",
    "pyiceberg",
    "pyspark",
    "sqlalchemy",
}
"""What a DAG file must not load: the DAG processor reads every file again and again."""

ARROWS = {
    "include/frazil": {"airflow", "pyspark", "frazil_airflow", "frazil_spark", "frazil_demo"},
    "include/frazil_airflow": {"pyspark", "frazil_spark", "frazil_demo"},
    "include/frazil_demo": {"airflow", "frazil_airflow", "frazil_spark"},
    "spark_jobs": {"airflow", "frazil_airflow", "frazil_demo"},
    "dags": {"pyspark", "frazil_spark", "frazil_demo"},
    "plugins": {"pyspark", "frazil_spark", "frazil_demo"},
}
"""Folder → what nothing in it may import, at any depth."""


def files_of(folder: str) -> list[Path]:
    """List the Python files of a folder."""
    return sorted((PROJECT / folder).rglob("*.py"))


def imports_of(node: ast.AST) -> Iterator[str]:
    """Yield the full names that one statement imports; `from a import b` may name module a.b."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
        yield node.module
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


def is_for_types_only(node: ast.stmt) -> bool:
    """Recognise `if TYPE_CHECKING:`."""
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def loaded_with(body: list[ast.stmt]) -> Iterator[str]:
    """Yield what a module imports while it is loaded: not in functions, not for types only."""
    for node in body:
        if is_for_types_only(node) or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        yield from imports_of(node)
        for part in ("body", "orelse", "finalbody"):
            yield from loaded_with(getattr(node, part, []))


@cache
def find_module(name: str) -> Path | None:
    """Locate a module of this project."""
    for root in ROOTS:
        path = root.joinpath(*name.split("."))
        for candidate in (path.with_suffix(".py"), path / "__init__.py"):
            if candidate.is_file():
                return candidate
    return None


def everything_loaded_by(path: Path) -> dict[str, Path]:
    """Follow the imports of a file through this project: name → the file that imports it."""
    found: dict[str, Path] = {}
    waiting, seen = [path], set()
    while waiting:
        current = waiting.pop()
        if current in seen:
            continue
        seen.add(current)
        for name in loaded_with(ast.parse(current.read_text()).body):
            found.setdefault(name, current)
            target = find_module(name)
            if target is not None:
                waiting.append(target)
    return found


@pytest.mark.parametrize("folder", ARROWS)
def test_no_import_points_the_wrong_way(folder: str) -> None:
    wrong = [
        f"{path.relative_to(PROJECT)}:{node.lineno} imports {name}"
        for path in files_of(folder)
        for node in ast.walk(ast.parse(path.read_text()))
        for name in imports_of(node)
        if name.partition(".")[0] in ARROWS[folder]
    ]

    assert files_of(folder), f"{folder} holds no Python file"
    assert wrong == []


def project_imports(path: Path) -> set[Path]:
    """List the project's modules that a file imports at any depth, for types too."""
    nodes = ast.walk(ast.parse(path.read_text()))
    found = {find_module(name) for node in nodes for name in imports_of(node)}
    return {target for target in found if target and target.name != "__init__.py"}


def test_no_module_imports_itself_by_way_of_others() -> None:
    waiting = {path: project_imports(path) for root in ROOTS for path in root.rglob("*.py")}

    while leaves := {path for path, targets in waiting.items() if not targets & set(waiting)}:
        waiting = {path: waiting[path] for path in waiting.keys() - leaves}

    assert sorted(path.stem for path in waiting) == []


@pytest.mark.parametrize("path", files_of("dags"), ids=lambda path: path.stem)
def test_a_dag_file_loads_nothing_heavy(path: Path) -> None:
    loaded = everything_loaded_by(path)

    assert "airflow.sdk" in {name for name in loaded if name.startswith("airflow")}
    assert {n: p.name for n, p in loaded.items() if n.partition(".")[0] in HEAVY} == {}


def test_stream_files_are_read_without_iceberg_kafka_or_spark() -> None:
    loaded = everything_loaded_by(PROJECT / "include/frazil/stream_files.py")

    assert "pydantic" in loaded
    assert {name.partition(".")[0] for name in loaded} & HEAVY == set()


def test_the_command_line_answers_help_without_loading_anything_heavy() -> None:
    loaded = everything_loaded_by(PROJECT / "include/frazil/cli/main.py")

    assert {n: p.name for n, p in loaded.items() if n.partition(".")[0] in HEAVY} == {}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("import airflow.sdk", {"airflow.sdk"}),
        ("from frazil import keys", {"frazil", "frazil.keys"}),
        ("try:\n    import pyspark\nexcept ImportError:\n    pass", {"pyspark"}),
        ("class A:\n    import pyspark", {"pyspark"}),
        ("def f():\n    import pyspark", set()),
        ("if TYPE_CHECKING:\n    import pyspark", set()),
    ],
    ids=["plain", "from", "in try", "in a class", "in a function", "for types only"],
)
def test_what_a_module_loads_is_understood(text: str, names: set[str]) -> None:
    assert set(loaded_with(ast.parse(text).body)) == names
