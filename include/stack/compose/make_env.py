#!/usr/bin/env python3
"""Write `.env` for docker-compose.yaml, with a random secret for each name in `.env.example`.

    python include/stack/compose/make_env.py [FILE]

FILE defaults to `.env` next to docker-compose.yaml. Values of an existing file stay, since the
databases and the object store were created with them; missing names are added at its end. Only
Python is needed.
"""

import base64
import os
import secrets
import sys
import uuid
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[3]


def make_fernet_key() -> str:
    """Return a key by which Airflow encrypts connections: 32 bytes in URL-safe base64."""
    return base64.urlsafe_b64encode(secrets.token_bytes(32)).decode()


def make_cluster_id() -> str:
    """Return a Kafka cluster id: a UUID in 22 characters of URL-safe base64.

    It does not start with a dash, which command lines treat as an option.
    """
    while True:
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not cluster_id.startswith("-"):
            return cluster_id


def make_value(name: str) -> str:
    """Return a random value for one name, 64 hex digits unless the name needs another format.

    Hex digits need no quoting in a URL, a shell or an env file.
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
    """Return the example with a value after every `NAME=`; comments stay."""
    lines = []
    for line in example.splitlines():
        is_empty_name = line.endswith("=") and not line.startswith("#")
        lines.append(line + make_value(line[:-1]) if is_empty_name else line)
    return "\n".join(lines) + "\n"


def add_missing(target: Path, content: str) -> int:
    """Append the names that an existing file lacks; return the exit code."""
    existing = target.read_text(encoding="utf-8")
    known = {line.partition("=")[0] for line in existing.splitlines()}
    values = [line for line in content.splitlines() if "=" in line and not line.startswith("#")]
    missing = [line for line in values if line.partition("=")[0] not in known]
    if not missing:
        print(  # noqa: T201 - output of a command
            f"{target} exists and is complete; nothing was changed\n"
            "Next: to start over, run `docker compose down --volumes` (deletes all data) and "
            "remove the file",
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
    """Write the file, readable by its owner only."""
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
