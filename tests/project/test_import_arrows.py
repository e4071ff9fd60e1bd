"""Imports point one way, between folders and between the packages of the library."""

import ast
import re
import sys
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

NEIGHBOURS = {"frazil_airflow", "frazil_cli", "frazil_demo", "frazil_spark", "frazil_stack"}

ARROWS = {
    "include/frazil": {"airflow", "pyspark", *NEIGHBOURS},
    "include/frazil_stack": {"airflow", "pyspark", *NEIGHBOURS} - {"frazil_stack"},
    "include/frazil_cli": {"airflow", "pyspark", *NEIGHBOURS} - {"frazil_cli", "frazil_stack"},
    "include/frazil_airflow": {"pyspark", *NEIGHBOURS} - {"frazil_airflow", "frazil_stack"},
    "include/frazil_demo": {"airflow", "frazil_airflow", "frazil_spark"},
    "spark_jobs": {"airflow", *NEIGHBOURS} - {"frazil_spark"},
    "spark_jobs/frazil_spark/decode": {"frazil_spark.fast_path", "frazil_spark.metrics"},
    "spark_jobs/frazil_spark/fast_path": {"frazil_spark.metrics"},
    "dags": {"pyspark", *NEIGHBOURS} - {"frazil_airflow", "frazil_stack"},
}
"""Folder → what nothing in it may import, at any depth."""

ROOT_MODULES = {"environment", "errors", "failpoints", "messages"}
"""What every package may import."""

_SCHEMAS = {"connections", "workspace", "streams", "ledger", "kafka", "iceberg"}
_INGEST = _SCHEMAS | {"schemas", "quality"}
_ABOVE_INGEST = _INGEST | {"ingest"}
PACKAGES: dict[str, set[str]] = {
    "environment": set(),
    "errors": set(),
    "failpoints": set(),
    "messages": set(),
    "connections": set(),
    "ledger": set(),
    "streams": {"connections", "ledger"},
    "kafka": {"connections", "ledger"},
    "spark": {"connections", "ledger", "kafka"},
    "iceberg": {"connections", "ledger", "streams"},
    "quality": {"ledger", "streams"},
    "workspace": {"connections", "ledger", "streams", "kafka", "iceberg", "spark"},
    "events": {"connections", "workspace"},
    "schemas": _SCHEMAS,
    "ingest": _INGEST,
    "state_tables": _ABOVE_INGEST,
    "maintenance": _ABOVE_INGEST | {"events", "state_tables"},
    "recovery": _ABOVE_INGEST,
    "migration": _ABOVE_INGEST | {"spark"},
    "observability": _ABOVE_INGEST | {"events", "maintenance", "state_tables"},
}
"""Package or root module of the library → the others that it may import."""

STACK = {"connections", "environment", "errors", "failpoints"}
DRILLS = STACK | {"kafka", "iceberg", "ledger", "workspace", "events"}
DRILLS |= {"messages"}
UI = {"observability", "ingest", "streams", "ledger", "workspace", "errors"}
DECODE = {"failpoints", "streams", "ledger", "quality", "schemas", "ingest", "recovery"}
JOBS = set(PACKAGES) - {"connections", "environment", "events", "iceberg", "kafka"}
JOBS -= {"observability", "workspace"}
NEIGHBOURS_ARROWS: dict[str, set[str]] = {
    "include/frazil_stack": STACK,
    "include/frazil_stack/drills": DRILLS,
    "include/frazil_airflow/ui": UI,
    "spark_jobs": JOBS,
    "spark_jobs/frazil_spark": JOBS,
    "spark_jobs/frazil_spark/decode": DECODE,
    "spark_jobs/frazil_spark/fast_path": {"streams", "schemas", "ingest"},
}
"""Folder outside the library → the packages of the library that its own files may import."""

MOST_MODULES = 15
MOST_PACKAGES = 14
MOST_ROOT_MODULES = 7


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
        if any(f"{name}.".startswith(f"{other}.") for other in ARROWS[folder])
    ]

    assert files_of(folder), f"{folder} holds no Python file"
    assert wrong == []


def library_parts(path: Path) -> set[str]:
    """List the packages and root modules of the library that a file imports, at any depth."""
    names = {name for node in ast.walk(ast.parse(path.read_text())) for name in imports_of(node)}
    parts = {name.split(".")[1] for name in names if name.startswith("frazil.")}
    return parts - {"__version__"}


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_imports_only_what_lies_below_it(package: str) -> None:
    base = PROJECT / "include/frazil"
    files = sorted(base.glob(f"{package}.py")) or files_of(f"include/frazil/{package}")
    allowed = PACKAGES[package] | ROOT_MODULES | {package}

    assert files
    assert {p.name: extra for p in files if (extra := library_parts(p) - allowed)} == {}


@pytest.mark.parametrize("folder", NEIGHBOURS_ARROWS)
def test_a_neighbour_imports_only_its_row_of_the_library(folder: str) -> None:
    files = sorted((PROJECT / folder).glob("*.py"))

    assert files
    allowed = NEIGHBOURS_ARROWS[folder]
    assert {p.name: extra for p in files if (extra := library_parts(p) - allowed)} == {}


def arrows_named_in(text: str) -> set[str]:
    """Read the packages that a docstring says may be imported; a package may name another's row."""
    listed = text.partition("may import:")[2] or text.partition("May import:")[2]
    rows = re.findall(r"what `(\w+)`\s+may import", listed)
    return set(re.findall(r"`(\w+)`", listed)).union(*(PACKAGES[row] for row in rows))


INITS = {package: f"include/frazil/{package}" for package in PACKAGES}
INITS |= {folder: folder for folder in NEIGHBOURS_ARROWS}


@pytest.mark.parametrize(
    "package", [name for name, f in INITS.items() if (PROJECT / f / "__init__.py").is_file()]
)
def test_a_package_names_the_imports_that_it_may_have(package: str) -> None:
    text = ast.get_docstring(ast.parse((PROJECT / INITS[package] / "__init__.py").read_text()))
    allowed = {**PACKAGES, **NEIGHBOURS_ARROWS}[package]

    assert text
    assert arrows_named_in(text) == allowed - ROOT_MODULES


def test_the_library_has_few_packages_of_few_modules() -> None:
    base = PROJECT / "include/frazil"
    packages = {path.name for path in base.iterdir() if (path / "__init__.py").is_file()}
    modules = {
        folder: len(list(folder.glob("*.py"))) - 1
        for root in ("include", "spark_jobs")
        for folder in {path.parent for path in (PROJECT / root).glob("frazil*/**/*.py")}
    }
    roots = {path.stem for path in base.glob("*.py")} - {"__init__"}

    assert packages | roots == set(PACKAGES)
    assert len(packages) <= MOST_PACKAGES
    assert len(roots) <= MOST_ROOT_MODULES
    assert {str(f): n for f, n in modules.items() if n > MOST_MODULES} == {}


def test_a_package_says_what_it_is_for_and_holds_nothing_else() -> None:
    inits = (p for root in ROOTS for p in root.glob("frazil*/*/__init__.py"))
    bodies = {path: ast.parse(path.read_text()).body for path in inits}

    assert len(bodies) >= len(PACKAGES) - MOST_ROOT_MODULES
    assert [str(p) for p, body in bodies.items() if len(body) != 1] == []


def project_imports(path: Path) -> set[Path]:
    """List the project's modules that a file imports at any depth, for types too."""
    nodes = ast.walk(ast.parse(path.read_text()))
    found = {find_module(name) for node in nodes for name in imports_of(node)}
    return {target for target in found if target and target.name != "__init__.py"}


def test_what_travels_to_spark_workers_imports_only_itself_numpy_and_pyarrow() -> None:
    files = files_of("spark_jobs/frazil_spark/fast_path")
    travelling = {path for path in files if path.stem not in {"__init__", "writer"}}
    travelling.add(PROJECT / "spark_jobs/frazil_spark/sampling.py")
    nodes = [node for path in travelling for node in ast.walk(ast.parse(path.read_text()))]
    packages = {name.partition(".")[0] for node in nodes for name in imports_of(node)}

    assert set().union(*map(project_imports, travelling)) <= travelling
    assert packages - sys.stdlib_module_names == {"frazil_spark", "numpy", "pyarrow"}


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
    loaded = everything_loaded_by(PROJECT / "include/frazil/streams/loading.py")

    assert "pydantic" in loaded
    assert {name.partition(".")[0] for name in loaded} & HEAVY == set()


def test_the_command_line_answers_help_without_loading_anything_heavy() -> None:
    loaded = everything_loaded_by(PROJECT / "include/frazil_cli/main.py")

    assert {n: p.name for n, p in loaded.items() if n.partition(".")[0] in HEAVY} == {}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("import airflow.sdk", {"airflow.sdk"}),
        ("from frazil.ledger import keys", {"frazil.ledger", "frazil.ledger.keys"}),
        ("try:\n    import pyspark\nexcept ImportError:\n    pass", {"pyspark"}),
        ("class A:\n    import pyspark", {"pyspark"}),
        ("def f():\n    import pyspark", set()),
        ("if TYPE_CHECKING:\n    import pyspark", set()),
    ],
    ids=["plain", "from", "in try", "in a class", "in a function", "for types only"],
)
def test_what_a_module_loads_is_understood(text: str, names: set[str]) -> None:
    assert set(loaded_with(ast.parse(text).body)) == names
