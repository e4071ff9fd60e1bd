"""Airflow's connections, for ids that the environment does not define."""

from typing import cast

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException

from frazil.connections.lookup import AirflowFields, Connection, add_resolver, from_airflow


def use_airflow_connections() -> None:
    """Resolve connection ids by Airflow if the environment does not define them."""
    add_resolver(find_airflow_connection)


def find_airflow_connection(connection_id: str) -> Connection | None:
    """Return a connection from Airflow's secrets backends or database; None if there is none."""
    try:
        found = BaseHook.get_connection(connection_id)
    except AirflowNotFoundException:
        return None
    return from_airflow(connection_id, cast("AirflowFields", found))
