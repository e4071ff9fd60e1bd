"""`frazil airflow`: set up Frazil in your own Airflow, and look up connections there."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated
from urllib.parse import parse_qs, urlsplit

import typer

from frazil.connections.lookup import Connection, add_resolver, parse_extra, read_fields
from frazil.environment import home_dir, shipped_path
from frazil.errors import ConfigurationError, ConnectionMissingError

airflow_app = typer.Typer(help="Set up Frazil in your own Airflow.", no_args_is_help=True)

STREAMS = "frazil_streams"
EXAMPLE = ("flights.yaml", "expectations/flights.json")
DAG_FILES: Mapping[str, str] = {
    "frazil_dags.py": '''\
"""Frazil's DAGs: those of each stream file, and those for all streams."""

from frazil_airflow.dag_loading import define_dags

define_dags()
''',
    "frazil_check_streams.py": '''\
"""No DAG: a broken stream file becomes this file's import error."""

from frazil_airflow.dag_loading import validate_stream_files

validate_stream_files()
''',
}
CONNECTIONS: Mapping[str, Mapping[str, object]] = {
    "KAFKA": {"conn_type": "kafka", "extra": {"bootstrap.servers": "broker:9092"}},
    "ICEBERG": {
        "conn_type": "iceberg",
        "extra": {"type": "rest", "uri": "https://catalog", "warehouse": "s3://lake"},
    },
    "SPARK_CONNECT": {"conn_type": "spark_connect", "host": "sc://spark", "port": 15002},
}
"""Examples, printed as comments."""


@airflow_app.command()
def init(
    folder: Annotated[
        Path, typer.Argument(help="Airflow's DAGs folder, or a folder in it.", metavar="DIR")
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list the files.")] = False,
) -> None:
    """Write two DAG files and an example stream file; print the settings that Airflow needs.

    Only new files are written: a file with other content is an error, and nothing is written.
    The settings are lines for a shell, on standard output.

    Example: frazil airflow init dags > frazil.env
    """
    folder = folder.absolute()
    try:
        new = find_new_files(folder)
        for path, text in new.items():
            if not dry_run:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            typer.echo(f"{'would write' if dry_run else 'wrote'} {path}", err=True)
    except OSError as error:
        raise ConfigurationError(
            f"{error.filename or folder}: cannot be read or written: {error.strerror}",
            "name a folder that this user may write to",
        ) from error
    if not new:
        typer.echo(f"{folder} has the files already", err=True)
    typer.echo(describe_settings(folder), nl=False)


def find_new_files(folder: Path) -> dict[Path, str]:
    """Return the files to write with their content; the example only into a new streams folder.

    Raises:
        ConfigurationError: a file is there with other content.
    """
    wanted = {folder / name: text for name, text in DAG_FILES.items()}
    if not (folder / STREAMS).exists():
        example = shipped_path("include/streams")
        wanted |= {folder / STREAMS / name: (example / name).read_text() for name in EXAMPLE}
    there = {path: text.encode() for path, text in wanted.items() if path.exists()}
    changed = [path for path, content in there.items() if path.read_bytes() != content]
    if changed:
        raise ConfigurationError(
            f"{', '.join(map(str, changed))}: exists with other content; nothing was written",
            "move it away, then run the command again",
        )
    return {path: text for path, text in wanted.items() if path not in there}


def describe_settings(folder: Path) -> str:
    """Return the environment of Airflow's processes, as lines of a shell."""
    settings = {
        "AIRFLOW__CORE__DAGS_FOLDER": folder,
        "FRAZIL_STREAMS": folder / STREAMS,
        "FRAZIL_HOME": home_dir(),
    }
    lines = [f"export {name}={shlex.quote(str(value))}" for name, value in settings.items()]
    examples = [
        f"# export AIRFLOW_CONN_{name}_DEFAULT={shlex.quote(json.dumps(content))}"
        for name, content in CONNECTIONS.items()
    ]
    note = "# Connections that Airflow does not have yet (docs/connections.md), for example:"
    return "\n".join([*lines, note, *examples, ""])


def use_stored_connections() -> None:
    """Look up connection ids in Airflow, if it is set up on this machine."""
    add_resolver(_find_connection)


@cache
def _find_connection(connection_id: str) -> Connection | None:
    """Ask Airflow's command line for a connection, in its secrets backend and its database.

    Raises:
        ConnectionMissingError: Airflow cannot be asked.
    """
    folders = f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}"
    program = shutil.which("airflow", path=folders)
    if program is None or not _is_airflow_set_up():
        return None
    command = (program, "connections", "get", connection_id, "--output", "json")
    kept = {k: v for k, v in os.environ.items() if k not in {"FORCE_COLOR", "CLICOLOR_FORCE"}}
    environment = {**kept, "NO_COLOR": "1"}
    try:
        ended = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=_WAIT
        )
        if _NOT_FOUND in ended.stderr + ended.stdout:
            return None
        [found] = json.loads(ended.stdout)
    except (ValueError, subprocess.TimeoutExpired) as error:
        raise ConnectionMissingError(
            f"connection {connection_id!r} is not in the environment, and Airflow cannot be asked "
            "for it",
            f"run `airflow connections get {connection_id}` to see why",
        ) from error
    # Airflow prints `true` as "True"; unless all values are texts, the address has the extra as
    # it was written.
    written = parse_qs(urlsplit(found["get_uri"]).query).get("__extra__", [])
    extra = parse_extra(connection_id, next(iter(written), json.dumps(found["extra_dejson"])))
    return read_fields(connection_id, found, extra)


_WAIT = 60
_NOT_FOUND = "Connection not found"


def _is_airflow_set_up() -> bool:
    """Return whether Airflow is configured here; running one of its commands would configure it."""
    home = Path(os.environ.get("AIRFLOW_HOME") or "~/airflow").expanduser()
    return any((home / name).is_file() for name in ("airflow.cfg", "airflow.db")) or any(
        name == "AIRFLOW_CONFIG" or name.startswith(("AIRFLOW__DATABASE__", "AIRFLOW__SECRETS__"))
        for name in os.environ
    )
