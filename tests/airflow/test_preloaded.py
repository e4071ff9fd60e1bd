"""What Airflow's fork server imports for all tasks."""

import subprocess
import sys

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
