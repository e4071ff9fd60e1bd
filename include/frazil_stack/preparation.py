"""Prepare the services: Kafka's storage, catalog, Airflow's database, rendered configuration."""

import base64
import json
import shlex
import shutil
import sqlite3
import subprocess
import uuid
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from string import Template

from frazil.errors import StackError
from frazil_stack.airflow_environment import airflow_environment, catalog_properties
from frazil_stack.credentials import write_private
from frazil_stack.jars import jar_files
from frazil_stack.services import (
    Service,
    StackPlan,
    kafka_command,
    service_environment,
    supervisor_environment,
)
from frazil_stack.settings import CATALOG_NAME, StackSettings
from frazil_stack.supervisor import socket_path

_TIMEOUT_SECONDS = 600


def format_kafka(plan: StackPlan) -> None:
    """Format Kafka's storage once, with a random cluster id.

    Storage that was removed gets a new cluster id, so that readers notice the other cluster.
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
    """Return a random cluster id: a UUID in URL-safe base64 that does not start with `-`."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text


def init_catalog(settings: StackSettings) -> None:
    """Create the catalog's database, so that Spark and PyIceberg use the same schema version.

    With write-ahead logging one of them can read while the other one commits.
    """
    from pyiceberg.catalog.sql import SqlCatalog  # noqa: PLC0415 - slow to import

    (settings.catalog_file.parent / "warehouse").mkdir(mode=0o700, parents=True, exist_ok=True)
    with sqlite3.connect(settings.catalog_file) as connection:
        connection.execute("pragma journal_mode=wal")
    connection.close()
    catalog = SqlCatalog(CATALOG_NAME, **catalog_properties(settings))
    catalog.engine.dispose()


def migrate_airflow(plan: StackPlan) -> None:
    """Migrate Airflow's database to the installed version, once per version."""
    home = plan.settings.airflow
    stamp = home / "migrated.json"
    wanted = json.dumps({"apache-airflow-core": version("apache-airflow-core")}).encode()
    if (home / "airflow.db").exists() and stamp.exists() and stamp.read_bytes() == wanted:
        return
    command = (str(plan.settings.bin / "airflow"), "db", "migrate")
    environment = airflow_environment(plan.settings, plan.ports, plan.keys)
    _run("airflow-migrate", command, environment, plan)
    stamp.write_bytes(wanted)


def tail(log: Path, lines: int = 15) -> str:
    """Return the last lines of a log, for an error message."""
    try:
        text = log.read_text(errors="replace")
    except OSError:
        return "(no log)"
    return "\n".join(text.splitlines()[-lines:]) or "(empty log)"


def _run(name: str, command: tuple[str, ...], environment: dict[str, str], plan: StackPlan) -> None:
    """Run one command, with its output in a log.

    Raises:
        StackError: the command failed; with the last lines of its log.
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


def render_stack(plan: StackPlan, services: tuple[Service, ...]) -> None:
    """Write all configuration, and one start script per service."""
    settings = plan.settings
    private = (settings.stack / "run", settings.stack / "spark", settings.logs, *scratch(settings))
    for folder in (*private, settings.kafka, settings.registry, settings.airflow):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for service in services:
        write_private(settings.stack / "run" / service.name, render_script(service), mode=0o700)
    values = _template_values(plan)
    spark = settings.stack / "spark"
    _render(settings, "kafka.properties", settings.stack / "kafka.properties", values)
    _render(settings, "spark-defaults.conf", spark / "spark-defaults.conf", values)
    _render(settings, "spark-log4j2.properties", spark / "log4j2.properties", values)
    programs = "\n".join(_render_program(settings, service) for service in services)
    values = {**values, "programs": programs}
    _render(settings, "supervisord.conf", settings.stack / "supervisord.conf", values)


def scratch(settings: StackSettings) -> tuple[Path, ...]:
    """Return the folders whose content is not needed after the stack ended."""
    return (settings.spark, settings.home / "tmp")


def clear_scratch(settings: StackSettings) -> None:
    """Remove files that killed processes left, such as shuffle files and native libraries."""
    for folder in scratch(settings):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700)


def render_script(service: Service) -> str:
    """Return the start script of a service: exported variables, then `exec`."""
    exports = (
        f"export {name}={shlex.quote(value)}" for name, value in sorted(service.environment.items())
    )
    head = ("#!/bin/sh", f"# {service.name}: rendered by `frazil stack up`; edits are lost.")
    return "\n".join([*head, *exports, f"exec {shlex.join(service.command)}", ""])


def _template_values(plan: StackPlan) -> dict[str, str]:
    settings = plan.settings
    return {
        "home": str(settings.home),
        "stack": str(settings.stack),
        "run": str(settings.stack / "run"),
        "logs": str(settings.logs),
        "tmp": str(settings.home / "tmp"),
        "socket": str(socket_path(settings.stack)),
        "conf": str(settings.stack / "spark"),
        "data": str(settings.kafka / "data"),
        "scratch": str(settings.spark),
        "jars": ",".join(map(str, jar_files(settings, "spark"))),
        "catalog": CATALOG_NAME,
        "catalog_file": str(settings.catalog_file),
        "warehouse": settings.warehouse,
        "kafka_port": str(plan.ports.kafka),
        "kafka_controller_port": str(plan.ports.kafka_controller),
        "spark_connect_port": str(plan.ports.spark_connect),
    }


def _render_program(settings: StackSettings, service: Service) -> str:
    """Return the section of one service in supervisor's configuration."""
    return Template((settings.templates / "program.conf").read_text()).substitute(
        name=service.name,
        run=settings.stack / "run",
        logs=settings.logs,
        directory=service.directory,
        priority=service.priority,
        stop_seconds=service.stop_seconds,
    )


def _render(settings: StackSettings, name: str, target: Path, values: Mapping[str, str]) -> None:
    """Render one template to a file."""
    write_private(target, Template((settings.templates / name).read_text()).substitute(values))
