"""An Airflow that a site has set up by itself, beside a cell's servers."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from conftest import FRAZIL, REPO, Lab
from faults.rest_catalog import find_free_port

AIRFLOW = str(FRAZIL.with_name("airflow"))


def describe_site(lab: Lab, home: Path) -> dict[str, str]:
    """Return the environment of a site: the cell's connections, and no settings of this Airflow."""
    port = find_free_port()
    kept = {k: v for k, v in lab.environment().items() if not k.startswith("AIRFLOW__")}
    folders = [REPO / "include", REPO / "spark_jobs"]
    return {
        **kept,
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(REPO / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__BASE_URL": f"http://localhost:{port}",
        "PYTHONPATH": os.pathsep.join(map(str, folders)),
    }


def run_airflow(lab: Lab, environment: Mapping[str, str], *words: str) -> None:
    """Run a command of Airflow; its output is among the files that are searched for secrets."""
    with (lab.folder / "output.log").open("a") as log:
        command = [AIRFLOW, *words]
        subprocess.run(command, env=environment, stdout=log, stderr=log, timeout=600, check=True)
