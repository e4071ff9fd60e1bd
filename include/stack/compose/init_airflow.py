#!/usr/bin/env python3
"""Prepare Airflow before its components start: passwords and database. Safe to repeat."""

import json
import os
import subprocess
from pathlib import Path

PASSWORDS_FILE = "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE"


def write_passwords(path: Path, passwords: dict[str, str]) -> None:
    """Write the passwords file of Airflow's simple auth manager."""
    path.touch(mode=0o600)
    path.write_text(json.dumps(passwords) + "\n", encoding="utf-8")


def run_airflow(*words: str) -> None:
    """Run an `airflow` command; raise if it fails."""
    subprocess.run(["airflow", *words], check=True)  # noqa: S607 - the image sets PATH


def main() -> None:
    """Write the passwords, then create or migrate the database."""
    users = ("admin", "approver")
    passwords = {user: os.environ[f"AIRFLOW_{user.upper()}_PASSWORD"] for user in users}
    write_passwords(Path(os.environ[PASSWORDS_FILE]), passwords)
    run_airflow("db", "migrate")


if __name__ == "__main__":
    main()
