"""What Airflow imports by name because its settings say so."""

SQLITE_WAIT_SECONDS = 60

# A plain dict: Airflow adds an argument of its own to it.
DATABASE_ARGUMENTS: dict[str, int | bool] = {"timeout": SQLITE_WAIT_SECONDS}


def local_host_name() -> str:
    """Name this machine without asking a name server, which a laptop on a train does not have."""
    return "localhost"
