"""The executor has imported what tasks import first, before it forks them."""

import ast
from pathlib import Path

import pytest

from frazil_airflow.executor import WARM_MODULES

pytestmark = pytest.mark.airflow

DAGS = Path(__file__).parents[2] / "dags"


def list_task_imports(path: Path) -> set[str]:
    """Name the modules that a DAG file's tasks import when they run."""
    functions = [
        node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)
    ]
    nodes = [node for function in functions for node in ast.walk(function)]
    return {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}


def test_every_module_that_a_task_imports_is_warm() -> None:
    found = set().union(*(list_task_imports(path) for path in DAGS.glob("*_dag.py")))

    assert "frazil.ingest" in found
    assert found <= set(WARM_MODULES)
