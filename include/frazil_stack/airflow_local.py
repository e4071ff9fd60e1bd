"""What Airflow imports by name because its settings say so."""

SQLITE_WAIT_SECONDS = 60

# A plain dict: Airflow adds an argument of its own to it.
DATABASE_ARGUMENTS: dict[str, int | bool] = {"timeout": SQLITE_WAIT_SECONDS}

# Two requests that write at once may wait for each other: the log of the second one holds up the
# loop that would commit the first. The second one fails when it has waited; nobody waits a minute.
API_DATABASE_ARGUMENTS: dict[str, int | bool] = {"timeout": 10}


def local_host_name() -> str:
    """Name this machine without asking a name server, which a laptop on a train does not have."""
    return "localhost"
