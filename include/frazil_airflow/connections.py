"""Airflow's connections, for ids that the environment does not define."""

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException

from frazil.connections.lookup import Connection, add_resolver, parse_extra


def use_airflow_connections() -> None:
    """Resolve connection ids by Airflow if the environment does not define them."""
    add_resolver(find_airflow_connection)


def find_airflow_connection(connection_id: str) -> Connection | None:
    """Return a connection from Airflow's secrets backends or database; None if there is none.

    Raises:
        ConfigurationError: its extra is no JSON object.
    """
    try:
        found = BaseHook.get_connection(connection_id)
    except AirflowNotFoundException:
        return None
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
