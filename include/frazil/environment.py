"""Folders, limits and pools that the environment sets."""

import hashlib
import os
import tempfile
from pathlib import Path

from frazil.errors import ConfigurationError

POOLS_VARIABLE = "FRAZIL_TABLE_POOLS"

DEFAULT_POOL = "default_pool"

_LIBRARY = Path(__file__).parents[1]

_IN_WHEEL = Path(__file__).with_name("shipped")
"""A wheel contains `dags`, `spark_jobs`, `include/stack` and `include/streams` of the checkout."""

FORK_SOCKET = "clients.sock"

_SOCKET_PATH_LIMIT = 90
"""The system allows 107 bytes (103 on macOS); servers first bind a longer, temporary name."""


def shipped_path(name: str) -> Path:
    """Return a folder by its path in the checkout, such as `spark_jobs` or `include/stack`."""
    return _IN_WHEEL / Path(name).name if is_wheel() else _LIBRARY.parent / name


def is_wheel() -> bool:
    """Return whether this is an installed wheel and not a checkout."""
    return _IN_WHEEL.is_dir()


def python_path() -> str:
    """Return the PYTHONPATH with which another interpreter imports Frazil's modules."""
    return f"{_LIBRARY}:{shipped_path('spark_jobs')}"


def home_dir() -> Path:
    """Return the folder of all local state (`FRAZIL_HOME`, default `.frazil`)."""
    return Path(os.environ.get("FRAZIL_HOME", ".frazil")).absolute()


def fork_server_address() -> Path | None:
    """Return the socket of the fork server for Spark clients; None if it is switched off.

    `FRAZIL_FORK_SERVER` names another socket; an empty value switches the fork server off.
    """
    configured = os.environ.get("FRAZIL_FORK_SERVER")
    if configured is None:
        return choose_socket_path(home_dir() / "stack", FORK_SOCKET)
    return Path(configured) if configured else None


def choose_socket_path(folder: Path, name: str) -> Path:
    """Return a socket's path in `folder`, or in the temp folder if that path is too long."""
    path = folder / name
    if len(str(path)) <= _SOCKET_PATH_LIMIT:
        return path
    digest = hashlib.sha256(str(folder).encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"frazil-{os.getuid()}-{digest}-{name}"


def streams_dir() -> Path:
    """Return the folder of stream files (`FRAZIL_STREAMS`).

    The default is `include/streams` of the checkout; with a wheel, `frazil_streams` in the working
    directory.
    """
    default = Path("frazil_streams") if is_wheel() else shipped_path("include/streams")
    return Path(os.environ.get("FRAZIL_STREAMS", default)).absolute()


def read_limit(variable: str, default: int) -> int:
    """Read a number of records from the environment.

    Raises:
        ConfigurationError: the value is not a number.
    """
    text = os.environ.get(variable, str(default))
    if not text.isdecimal():
        raise ConfigurationError(
            f"{variable} is {text!r}, not a number of records",
            f"set it to a number such as {default}, or unset it",
        )
    return int(text)


def choose_pool(table: str) -> str:
    """Return the Airflow pool of the tasks that write to a table.

    Where `FRAZIL_TABLE_POOLS` is `true` it is `frazil_<namespace>_<table>`, which the site creates,
    with `mode: upsert` that of the change table;
    `frazil doctor` names those that are missing, and the watch those that tasks wait for.
    """
    if os.environ.get(POOLS_VARIABLE, "").lower() != "true":
        return DEFAULT_POOL
    return f"frazil_{table.replace('.', '_')}"


def create_pool_command(pool: str) -> str:
    """Return the command that creates the pool of a table."""
    return f'`airflow pools set {pool} 1 "one writer"`'
