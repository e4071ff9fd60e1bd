"""Airflow's connections, for ids that the environment does not define."""

from typing import TYPE_CHECKING

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException

from frazil.connections.lookup import Connection, add_resolver, parse_extra

if TYPE_CHECKING:
    from airflow.models.connection import Connection as StoredConnection
    from airflow.sdk import Connection as AirflowConnection


def use_airflow_connections() -> None:
    """Resolve connection ids by Airflow if the environment does not define them."""
    add_resolver(find_airflow_connection)


def find_airflow_connection(connection_id: str) -> Connection | None:
    """Return a connection from Airflow's secrets backends or database; None if there is none."""
    try:
        found = BaseHook.get_connection(connection_id)
    except AirflowNotFoundException:
        return None
    return _read(connection_id, found)


def find_stored_connection(connection_id: str) -> Connection | None:
    """Return a connection from the secrets backends and the database of this machine's Airflow.

    For the command line, which is no task and has no supervisor to ask.
    """
    from airflow.models.connection import Connection as StoredConnection  # noqa: PLC0415 - 1 s

    try:
        found = StoredConnection.get_connection_from_secrets(connection_id)
    except AirflowNotFoundException:
        return None
    return _read(connection_id, found)


def _read(connection_id: str, found: "AirflowConnection | StoredConnection") -> Connection:
    """Return one of Airflow's connections as ours.

    Raises:
        ConfigurationError: its extra is no JSON object.
    """
    return Connection(
        id=connection_id,
        host=found.host,
        port=found.port,
        login=found.login,
        password=found.password,
        extra=parse_extra(connection_id, found.extra),
        conn_type=found.conn_type,
        schema=found.schema,
    )
