"""A PostgreSQL of a test's own, from Debian's package: with logical decoding and a password."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg2
from faults.rest_catalog import find_free_port

PROGRAMS = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
MISSING = "PostgreSQL is not installed: apt-get install postgresql-15"
USER, PASSWORD, DATABASE = "frazil", "p-6291", "postgres"


def find_programs() -> Path:
    """Return the folder of PostgreSQL's programs."""
    return PROGRAMS[-1].parent


@dataclass(frozen=True)
class Database:
    """A running PostgreSQL."""

    port: int

    def ask(self, text: str, *arguments: object) -> list[tuple[object, ...]]:
        """Run one statement in a transaction of its own; give its rows."""
        connection = psycopg2.connect(
            host="127.0.0.1", port=self.port, user=USER, password=PASSWORD, dbname=DATABASE
        )
        with connection, connection.cursor() as cursor:
            cursor.execute(text, arguments or None)
            found = cursor.fetchall() if cursor.description else []
        connection.close()
        return found

    def connection(self, **changes: object) -> dict[str, object]:
        """Return the database as a connection of Airflow."""
        login = {"login": USER, "password": PASSWORD, "schema": DATABASE}
        return {"conn_type": "postgres", "host": "127.0.0.1", "port": self.port, **login, **changes}


def _run(command: list[str], folder: Path) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=folder)


@contextmanager
def start_postgres() -> Iterator[Database]:
    """Start a PostgreSQL with logical decoding; as root, as the user postgres: it refuses root."""
    folder = Path(tempfile.mkdtemp(prefix="cdc-", dir="/tmp"))
    port, is_root = find_free_port(), os.getuid() == 0
    password = folder / "password"
    password.write_text(PASSWORD)
    if is_root:
        shutil.chown(folder, "postgres")
        shutil.chown(password, "postgres")
    as_postgres = ["runuser", "-u", "postgres", "--"] if is_root else []
    initdb = [str(find_programs() / "initdb"), "-D", str(folder / "data"), "-U", USER]
    initdb += ["-A", "scram-sha-256", "--pwfile", str(password), "--no-sync"]
    _run([*as_postgres, *initdb], folder)
    options = f"-p {port} -h 127.0.0.1 -k {folder} -c wal_level=logical -c fsync=off"
    control = [*as_postgres, str(find_programs() / "pg_ctl"), "-D", str(folder / "data"), "-w"]
    _run([*control, "-l", str(folder / "log"), "-o", options, "start"], folder)
    try:
        yield Database(port)
    finally:
        _run([*control, "-m", "immediate", "stop"], folder)
        shutil.rmtree(folder)
