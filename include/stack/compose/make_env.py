#!/usr/bin/env python3
"""Write `.env` for docker-compose.yaml, with a fresh secret for each name in `.env.example`.

    python include/stack/compose/make_env.py [FILE]

FILE defaults to `.env` beside docker-compose.yaml. What an existing file says stays: the databases
and the object store were made with it. Names that a newer compose file asks for are added at its
end. Python alone is enough; nothing is installed.
"""

import base64
import os
import secrets
import sys
import uuid
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[3]


def make_fernet_key() -> str:
    """Make the key that Airflow encrypts connections with: 32 bytes, URL-safe base64."""
    return base64.urlsafe_b64encode(secrets.token_bytes(32)).decode()


def make_cluster_id() -> str:
    """Make a Kafka cluster id: a UUID in 22 characters of URL-safe base64, no dash in front.

    Kafka's own `random-uuid` leaves out a leading dash too: a command line takes it for an option.
    """
    while True:
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not cluster_id.startswith("-"):
            return cluster_id


def make_value(name: str) -> str:
    """Make a value for one name; what is not a key of special form is 64 hex digits.

    Hex needs no quoting in a database address, a shell or an env file.
    """
    match name:
        case "AIRFLOW_FERNET_KEY":
            return make_fernet_key()
        case "KAFKA_CLUSTER_ID":
            return make_cluster_id()
        case "S3_ACCESS_KEY":
            return secrets.token_hex(10)
        case _:
            return secrets.token_hex(32)


def fill_example(example: str) -> str:
    """Give the example with a value after every `NAME=`; comments stay."""
    lines = []
    for line in example.splitlines():
        is_empty_name = line.endswith("=") and not line.startswith("#")
        lines.append(line + make_value(line[:-1]) if is_empty_name else line)
    return "\n".join(lines) + "\n"


def add_missing(target: Path, content: str) -> int:
    """Add what an existing file lacks; touch nothing that it has."""
    existing = target.read_text(encoding="utf-8")
    known = {line.partition("=")[0] for line in existing.splitlines()}
    values = [line for line in content.splitlines() if "=" in line and not line.startswith("#")]
    missing = [line for line in values if line.partition("=")[0] not in known]
    if not missing:
        print(  # noqa: T201 - a command speaks on its streams
            f"{target} exists and stays as it is: the volumes were made with its secrets\n"
            "Next: `docker compose down --volumes` deletes all data; then remove the file",
            file=sys.stderr,
        )
        return 1
    with target.open("a", encoding="utf-8") as file:
        file.write("" if existing.endswith("\n") or not existing else "\n")
        file.write("\n".join(missing) + "\n")
    names = ", ".join(line.partition("=")[0] for line in missing)
    print(f"added {names} to {target}\nNext: docker compose up --build --detach --wait")  # noqa: T201
    return 0


def main() -> int:
    """Write the file, readable by its owner alone."""
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else PROJECT / ".env"
    content = fill_example((PROJECT / ".env.example").read_text(encoding="utf-8"))
    try:
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return add_missing(target, content)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(content)
    print(f"wrote {target}\nNext: docker compose up --build --detach --wait")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
