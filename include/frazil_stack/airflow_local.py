"""Objects that Airflow imports because its settings name them."""

SQLITE_WAIT_SECONDS = 60

# A mutable dict: Airflow adds an argument of its own to it.
DATABASE_ARGUMENTS: dict[str, int | bool] = {"timeout": SQLITE_WAIT_SECONDS}

# Two requests that write at the same time may block each other: the second one blocks the event
# loop that would commit the first one, until this timeout. So it is shorter here.
API_DATABASE_ARGUMENTS: dict[str, int | bool] = {"timeout": 10}


def local_host_name() -> str:
    """Return a host name that needs no name server: a laptop may be offline."""
    return "localhost"
