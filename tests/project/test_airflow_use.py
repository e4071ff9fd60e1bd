"""The product uses what Airflow publishes: no table of its own, no private name, no patch."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
FOLDERS = ("dags", "include", "spark_jobs", "tests/airflow")
REFUSED = ("airflow.models", "airflow.utils.session", "airflow.settings", "airflow.jobs")
"""What reads and writes Airflow's own database."""

UNDOCUMENTED = ("airflow.sdk.execution_time", "airflow.api_fastapi", "airflow.executors")
"""What Airflow imports from itself and does not document."""

USERS = {
    ("include/frazil_airflow/dag_runs.py", "airflow.sdk.execution_time"),
    ("include/frazil_airflow/preloaded.py", "airflow.executors"),
    ("include/frazil_airflow/preloaded.py", "airflow.sdk.execution_time"),
    ("include/frazil_airflow/ui/status_page.py", "airflow.api_fastapi"),
    ("include/frazil_stack/airflow_environment.py", "airflow.api_fastapi"),
}
"""Files and the undocumented modules that they use (decision record 29)."""


def is_private(name: str) -> bool:
    """Tell `_name` from `name` and `__name__`."""
    return name.startswith("_") and not name.endswith("__")


def find_imports(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield each name that comes from Airflow: as the file calls it, and in full."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for each in node.names:
                if each.name.partition(".")[0] == "airflow":
                    yield each.asname or "airflow", each.name
        elif (
            isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "airflow"
        ):
            for each in node.names:
                yield each.asname or each.name, f"{node.module}.{each.name}"


def find_names(tree: ast.AST) -> Iterator[str]:
    """Yield each name that comes from Airflow in full, also one that a text names."""
    yield from (full for _, full in find_imports(tree))
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if is_text and re.fullmatch(r"airflow(\.\w+){2,}", str(node.value)):
            yield str(node.value)


def find_root(node: ast.expr) -> str:
    """Return the first name of `name.attribute.attribute`; `super` for what `super()` has."""
    while isinstance(node, ast.Attribute):
        node = node.value
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.args:
        return node.func.id
    return node.id if isinstance(node, ast.Name) else ""


def find_faults(source: str) -> list[str]:
    """List what a file does with Airflow that Airflow has not published."""
    tree = ast.parse(source)
    imports = list(find_imports(tree))
    local = {name for name, _ in imports}
    faults = [
        full
        for _, full in imports
        if f"{full}.".startswith(tuple(f"{each}." for each in REFUSED))
        or any(map(is_private, full.split(".")))
    ]
    roots = {*local, "super"} if local else set()  # elsewhere `super()` has nothing of Airflow
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and find_root(node.value) in roots:
            is_patch = isinstance(node.ctx, ast.Store | ast.Del)
            faults += [ast.unparse(node)] if is_private(node.attr) or is_patch else []
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {"setattr", "delattr"}:
            faults += [ast.unparse(node)] if local else []
    return faults


@pytest.mark.parametrize(
    "source",
    [
        "from airflow.models.dagrun import DagRun",
        "import airflow.models",
        "from airflow import models",
        "from airflow.utils.session import create_session",
        "from airflow.sdk.bases.decorator import _TaskDecorator",
        "from airflow.sdk.execution_time import supervisor\nsupervisor.Process._start()",
        "from airflow.sdk.execution_time import comms\ncomms.TypeAdapter = cache",
        "from airflow.sdk.execution_time import comms\nsetattr(comms, 'TypeAdapter', cache)",
        "import airflow.executors as e\nclass Own(e.Local):\n  def _do(self):\n    super()._do()",
    ],
)
def test_the_scan_finds_what_airflow_has_not_published(source: str) -> None:
    assert find_faults(source)


def test_the_scan_lets_public_names_pass() -> None:
    source = "from airflow.sdk import BaseOperator\nclass Own(BaseOperator):\n    _mine = 1\n"

    assert find_faults(source) == []


def test_the_scan_finds_modules_that_a_text_names() -> None:
    source = "import importlib\nimportlib.import_module('airflow.executors.local_executor')"

    assert [*find_names(ast.parse(source))] == ["airflow.executors.local_executor"]


def test_the_users_of_undocumented_modules_are_known() -> None:
    found = {
        (str(path.relative_to(PROJECT)), each)
        for folder in ("dags", "include", "spark_jobs")
        for path in (PROJECT / folder).rglob("*.py")
        for full in find_names(ast.parse(path.read_text()))
        for each in UNDOCUMENTED
        if f"{full}.".startswith(f"{each}.")
    }

    assert found == USERS


def test_the_product_uses_only_what_airflow_publishes() -> None:
    paths = [path for folder in FOLDERS for path in (PROJECT / folder).rglob("*.py")]
    faults = {str(path): found for path in paths if (found := find_faults(path.read_text()))}

    assert len(paths) > 100
    assert faults == {}
