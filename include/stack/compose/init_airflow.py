#!/usr/bin/env python3
"""Prepare Airflow before its parts start: database, passwords, one pool per table.

Safe to run again, and needed again after a stream with a new table was added:

    docker compose run --rm airflow-init
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from frazil.connections import streams_dir
from frazil.streams.loading import load_readable_streams
from frazil.streams.models import Stream
from frazil_stack.pools import BACKFILL_POOL

PASSWORDS_FILE = "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE"


def write_passwords(path: Path, passwords: dict[str, str]) -> None:
    """Write the users' passwords where Airflow's simple auth manager reads them."""
    path.touch(mode=0o600)
    path.write_text(json.dumps(passwords) + "\n", encoding="utf-8")


def describe_pools(streams: Iterable[Stream]) -> dict[str, dict[str, str | int | bool]]:
    """Give a single-slot pool per table and for backfills, as `airflow pools import` wants it."""
    uses = {stream.pool: f"one writer at a time for {stream.table.name}" for stream in streams}
    uses[BACKFILL_POOL] = "one window of a backfill at a time"
    return {
        pool: {"slots": 1, "description": use, "include_deferred": False}
        for pool, use in uses.items()
    }


def import_pools(directory: Path) -> None:
    """Import the pools of all readable streams; a broken file is named and stops no other."""
    streams, errors = load_readable_streams(directory)
    for error in errors:
        print(error, file=sys.stderr)  # noqa: T201 - the container's log
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(describe_pools(streams), file)
        file.flush()
        run_airflow("pools", "import", file.name)


def run_airflow(*words: str) -> None:
    """Run one command of Airflow's; its failure is ours."""
    subprocess.run(["airflow", *words], check=True)  # noqa: S607 - the image sets PATH


def main() -> None:
    """Run the three steps in order."""
    users = ("admin", "approver")
    passwords = {user: os.environ[f"AIRFLOW_{user.upper()}_PASSWORD"] for user in users}
    write_passwords(Path(os.environ[PASSWORDS_FILE]), passwords)
    run_airflow("db", "migrate")
    import_pools(streams_dir())


if __name__ == "__main__":
    main()
