"""What must exist before a service starts: formatted Kafka storage, catalog tables, Airflow's."""

import base64
import json
import shutil
import sqlite3
import subprocess
import uuid
from importlib.metadata import version
from pathlib import Path

from frazil.errors import StackError
from frazil.stack.airflow_environment import airflow_environment, catalog_properties
from frazil.stack.services import (
    StackPlan,
    kafka_command,
    service_environment,
    supervisor_environment,
)
from frazil.stack.settings import CATALOG_NAME, StackSettings

_TIMEOUT_SECONDS = 600


def format_kafka(plan: StackPlan) -> None:
    """Format Kafka's storage once, under a random cluster id.

    Storage that was removed gets a new id: to its readers it is another cluster, and it is.
    """
    data = plan.settings.kafka / "data"
    if (data / "meta.properties").exists():
        return
    shutil.rmtree(data, ignore_errors=True)
    config = str(plan.settings.stack / "kafka.properties")
    arguments = ("format", "-t", make_cluster_id(), "-c", config)
    command = kafka_command(plan, "kafka.tools.StorageTool", *arguments)
    _run("kafka-format", command, {}, plan)


def make_cluster_id() -> str:
    """Draw a cluster id as Kafka writes them: a UUID in URL-safe base64, not starting with `-`."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text


def init_catalog(settings: StackSettings) -> None:
    """Create the catalog's tables, so that Spark and PyIceberg find the same schema version.

    Write-ahead logging lets Spark read while PyIceberg commits, and the other way round.
    """
    from pyiceberg.catalog.sql import SqlCatalog  # noqa: PLC0415 - slow to import

    (settings.catalog_file.parent / "warehouse").mkdir(mode=0o700, parents=True, exist_ok=True)
    with sqlite3.connect(settings.catalog_file) as connection:
        connection.execute("pragma journal_mode=wal")
    connection.close()
    catalog = SqlCatalog(CATALOG_NAME, **catalog_properties(settings))
    catalog.engine.dispose()


def migrate_airflow(plan: StackPlan) -> None:
    """Bring Airflow's database to the installed version, once per version."""
    home = plan.settings.airflow
    stamp = home / "migrated.json"
    wanted = {"apache-airflow-core": version("apache-airflow-core")}
    if (
        (home / "airflow.db").exists()
        and stamp.exists()
        and json.loads(stamp.read_text()) == wanted
    ):
        return
    command = (str(plan.settings.bin / "airflow"), "db", "migrate")
    environment = airflow_environment(plan.settings, plan.ports, plan.keys)
    _run("airflow-migrate", command, environment, plan)
    stamp.write_text(json.dumps(wanted))


def tail(log: Path, lines: int = 15) -> str:
    """Give the last lines of a log, for an error that a person reads."""
    try:
        text = log.read_text(errors="replace")
    except OSError:
        return "(no log)"
    return "\n".join(text.splitlines()[-lines:]) or "(empty log)"


def _run(name: str, command: tuple[str, ...], environment: dict[str, str], plan: StackPlan) -> None:
    """Run one preparing command to its end, its output in a log.

    Raises:
        StackError: it failed; carries the end of its log.
    """
    settings = plan.settings
    log = settings.logs / f"{name}.log"
    merged = {**supervisor_environment(settings), **service_environment(plan), **environment}
    with log.open("w") as output:
        done = subprocess.run(
            command,
            env=merged,
            cwd=settings.home,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=_TIMEOUT_SECONDS,
            check=False,
        )
    if done.returncode != 0:
        raise StackError(
            f"{name} failed with exit status {done.returncode}:\n{tail(log)}",
            f"read {log}, then `frazil stack up`",
        )
