"""`frazil airflow`: the files and settings with which an Airflow of your own runs Frazil."""

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from frazil.environment import home_dir, shipped_path
from frazil.errors import ConfigurationError

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
"""Examples, whose lines are comments."""


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
    new = find_new_files(folder)
    for path, text in new.items():
        if not dry_run:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        typer.echo(f"{'would write' if dry_run else 'wrote'} {path}", err=True)
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
    changed = [path for path, text in wanted.items() if path.exists() and path.read_text() != text]
    if changed:
        raise ConfigurationError(
            f"{', '.join(map(str, changed))}: exists with other content; nothing was written",
            "move it away, then run the command again",
        )
    return {path: text for path, text in wanted.items() if not path.exists()}


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
