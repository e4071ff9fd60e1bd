"""What Airflow's fork server imports for all tasks."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.airflow, pytest.mark.slow]

PROBE = """
import sys, threading
import psutil
import frazil_airflow.preloaded as preloaded
process = psutil.Process()
databases = [file.path for file in process.open_files() if file.path.endswith(".db")]
print(set(preloaded.MODULES) - set(sys.modules), threading.active_count(), databases)
print(len(process.net_connections()))
"""


def test_what_tasks_import_is_there_and_nothing_is_open() -> None:
    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=True)

    assert done.stdout == "set() 1 []\n0\n"


IMPORTS = """
import sys
from importlib import import_module
import frazil_airflow.preloaded
before = set(sys.modules)
for module in sys.argv[1:]:
    import_module(module)
print(sorted(name for name in set(sys.modules) - before if name.startswith("frazil")))
"""


@pytest.mark.parametrize("name", ["ingest", "maintain", "watch"])
def test_a_frequent_task_imports_nothing_of_its_own(name: str) -> None:
    tree = ast.parse(Path("dags", f"{name}_dag.py").read_text(encoding="utf-8"))
    modules = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    command = [sys.executable, "-c", IMPORTS, *modules]
    done = subprocess.run(command, capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"
