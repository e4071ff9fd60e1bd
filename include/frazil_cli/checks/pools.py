"""Check Airflow's pools, if the site has a pool for each table (`FRAZIL_TABLE_POOLS`)."""

import json
import os
import subprocess
from collections.abc import Iterable

from frazil.errors import StackError
from frazil_stack.airflow_environment import airflow_environment
from frazil_stack.credentials import ensure_credentials
from frazil_stack.ports import Ports, load_ports
from frazil_stack.settings import StackSettings

_TIMEOUT_SECONDS = 120


def find_missing_pools(settings: StackSettings, pools: Iterable[str]) -> tuple[str, ...]:
    """Return the pools that Airflow does not have: a task of such a pool is never started.

    Raises:
        StackError: `airflow pools list` failed; with the last line of its output.
    """
    command = (str(settings.bin / "airflow"), "pools", "list", "--output", "json")
    try:
        done = subprocess.run(
            command,
            env={**os.environ, **_embedded_airflow(settings)},
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_SECONDS,
            check=True,
        )
        known = {str(each["pool"]) for each in json.loads(done.stdout)}
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        output = getattr(error, "stderr", None) or str(error)
        raise StackError(
            f"Airflow did not list its pools: {str(output).strip().splitlines()[-1]}",
            "run `frazil doctor` where `airflow pools list` works",
        ) from error
    return tuple(sorted(set(pools) - known))


def _embedded_airflow(settings: StackSettings) -> dict[str, str]:
    """Return the settings of the embedded Airflow, if the environment names no other."""
    if "AIRFLOW_HOME" in os.environ or not (settings.airflow / "airflow.db").exists():
        return {}
    ports = load_ports(settings.stack / "ports.json") or Ports()
    return airflow_environment(settings, ports, ensure_credentials(settings.airflow))
