"""Writing what the services read: configs from `include/stack` and one start script each."""

import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path
from string import Template

from frazil.stack.credentials import write_private
from frazil.stack.jars import jar_files
from frazil.stack.services import Service, StackPlan
from frazil.stack.settings import CATALOG_NAME, StackSettings
from frazil.stack.supervision import socket_path


def render_stack(plan: StackPlan, services: tuple[Service, ...]) -> None:
    """Write every config and one start script per service; the same plan gives the same files."""
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
    """Name the folders whose content no later process needs."""
    return (settings.spark, settings.home / "tmp")


def clear_scratch(settings: StackSettings) -> None:
    """Remove what killed processes left: shuffle files, unpacked native libraries."""
    for folder in scratch(settings):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700)


def render_script(service: Service) -> str:
    """Write the start script: exports, then the program in the shell's place."""
    exports = (
        f"export {name}={shlex.quote(value)}" for name, value in sorted(service.environment.items())
    )
    head = ("#!/bin/sh", f"# {service.name}: rendered by `frazil stack up`; edits are lost.")
    return "\n".join([*head, *exports, f"exec {shlex.join(service.command)}", ""])


def _template_values(plan: StackPlan) -> dict[str, str]:
    """Give the values of all templates."""
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
    """Write one program section of supervisor's config."""
    return Template((settings.templates / "program.conf").read_text()).substitute(
        name=service.name,
        run=settings.stack / "run",
        logs=settings.logs,
        directory=service.directory,
        priority=service.priority,
        stop_seconds=service.stop_seconds,
    )


def _render(settings: StackSettings, name: str, target: Path, values: Mapping[str, str]) -> None:
    """Fill one template; a placeholder without a value is an error."""
    write_private(target, Template((settings.templates / name).read_text()).substitute(values))
