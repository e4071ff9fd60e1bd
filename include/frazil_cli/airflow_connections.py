"""Connections of this machine's Airflow for the command line, where the environment has none."""

import os
from importlib.util import find_spec
from pathlib import Path

from frazil.connections.lookup import Connection, add_resolver


def use_stored_connections() -> None:
    """Resolve connection ids by Airflow, where it is set up on this machine."""
    add_resolver(_find_connection)


def _find_connection(connection_id: str) -> Connection | None:
    """Ask Airflow for a connection; importing it takes seconds, so nothing else does."""
    if not is_airflow_set_up():
        return None
    from frazil_airflow.connections import find_stored_connection

    return find_stored_connection(connection_id)


def is_airflow_set_up() -> bool:
    """Return whether Airflow is installed and configured; an import alone would configure it."""
    if find_spec("airflow") is None:
        return False
    home = os.environ.get("AIRFLOW_HOME") or Path.home() / "airflow"
    return Path(home, "airflow.cfg").is_file() or any(
        name.startswith(("AIRFLOW__DATABASE__", "AIRFLOW__SECRETS__")) for name in os.environ
    )
