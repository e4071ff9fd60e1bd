"""A PostgreSQL for the demonstration and drills, by the programs installed on this machine."""

import hashlib
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg2

from frazil.errors import StackError

USER, DATABASE = "shop", "postgres"
_SYSTEM_USER = "postgres"
_START_SECONDS = 60
_DEBIAN = Path("/usr/lib/postgresql")
_NEXT = "install PostgreSQL 14 or newer (`apt-get install postgresql`), and run this again"


@dataclass(frozen=True)
class Database:
    """A running PostgreSQL."""

    port: int
    password: str = field(repr=False)

    def ask(self, statement: str) -> list[tuple[Any, ...]]:
        """Run a statement in a transaction of its own; return its rows."""
        connection = psycopg2.connect(
            host="127.0.0.1",
            port=self.port,
            user=USER,
            password=self.password,
            dbname=DATABASE,
        )
        try:
            with connection, connection.cursor() as cursor:
                cursor.execute(statement)
                return list(cursor.fetchall()) if cursor.description else []
        finally:
            connection.close()


def find_programs() -> Path:
    """Return the folder of PostgreSQL's programs.

    Raises:
        StackError: PostgreSQL is not installed.
    """
    found = sorted(_DEBIAN.glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
    program = found[-1] if found else shutil.which("initdb")
    if program is None:
        raise StackError("PostgreSQL is not installed: there is no program initdb", _NEXT)
    return Path(program).parent


def choose_folder(home: Path) -> Path:
    """Return the folder of the data; PostgreSQL refuses root, whose home others cannot enter.

    Raises:
        StackError: this is root, and there is no user for PostgreSQL.
    """
    if os.getuid():
        return home / "postgres"
    try:
        entry = pwd.getpwnam(_SYSTEM_USER)
    except KeyError as error:
        facts = f"PostgreSQL does not run as root, and there is no user {_SYSTEM_USER}"
        raise StackError(facts, _NEXT) from error
    digest = hashlib.sha256(str(home).encode()).hexdigest()[:16]
    return Path(entry.pw_dir) / f"frazil-demo-{digest}"


@contextmanager
def run_database(home: Path) -> Iterator[Database]:
    """Run a PostgreSQL with logical decoding, whose data stay; `home` holds its password and log.

    If the password file is missing, the database is created anew.

    Raises:
        StackError: PostgreSQL is not installed, or does not start.
    """
    programs, folder = find_programs(), choose_folder(home)
    secret = home / "password"
    owner = None if os.getuid() else _SYSTEM_USER
    if not secret.is_file():
        _create(programs, folder, secret, owner)
    database = Database(_choose_port(), secret.read_text())
    settings = {
        "port": database.port,
        "listen_addresses": "127.0.0.1",
        "unix_socket_directories": folder,
        "wal_level": "logical",
    }
    options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
    command = [str(programs / "postgres"), "-D", str(folder / "data"), *options]
    log = home / "postgres.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=folder,
            user=owner,
            group=owner,
            start_new_session=True,
        )
    try:
        _wait(database, process, log)
        yield database
    finally:
        process.send_signal(signal.SIGINT)  # after SIGTERM it would wait for clients
        process.wait(_START_SECONDS)


def _choose_port() -> int:
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        return int(chosen.getsockname()[1])


def _create(programs: Path, folder: Path, secret: Path, owner: str | None) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    password = folder / "password"
    password.touch(mode=0o600)
    password.write_text(secrets.token_hex(16))
    if owner:
        for path in (folder, password):
            shutil.chown(path, owner, owner)
    command = [str(programs / "initdb"), "-D", str(folder / "data"), "-U", USER]
    login = ["--auth=scram-sha-256", f"--pwfile={password}"]
    done = subprocess.run(
        [*command, *login, "--encoding=UTF8", "--locale=C"],
        cwd=folder,
        user=owner,
        group=owner,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise StackError(f"initdb failed: {done.stderr.strip()[-300:]}", _NEXT)
    secret.touch(mode=0o600)
    secret.write_text(password.read_text())
    password.unlink()


def _wait(database: Database, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        try:
            database.ask("SELECT 1")
        except psycopg2.OperationalError:
            time.sleep(0.2)
        else:
            return
    raise StackError("PostgreSQL did not start", f"read {log}, and run this again")
