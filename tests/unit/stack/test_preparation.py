"""Rendered configs: parsable by their services, private, the same each time."""

import configparser
import json
import subprocess
from pathlib import Path

import pytest

from frazil import failpoints
from frazil_stack.airflow_environment import airflow_environment
from frazil_stack.credentials import AirflowKeys
from frazil_stack.java import Java
from frazil_stack.ports import Ports
from frazil_stack.preparation import render_script, render_stack
from frazil_stack.services import (
    SERVICE_PARTS,
    Service,
    StackPlan,
    build_services,
    supervisor_environment,
)
from frazil_stack.settings import StackSettings, load_settings
from frazil_stack.supervisor import socket_path

PORTS = Ports(kafka=21001, kafka_controller=21002, spark_connect=21003, airflow=21004)


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StackSettings:
    """Point to a home of the test's own."""
    monkeypatch.setenv("FRAZIL_HOME", str(tmp_path / "home"))
    return load_settings({})


@pytest.fixture
def plan(settings: StackSettings) -> StackPlan:
    """Plan a stack without starting one."""
    java = Java(Path("/usr/lib/jvm/j"), "17.0.1")
    return StackPlan(settings, PORTS, java, AirflowKeys("jwt-key", "api-key", "fernet-key"))


def read_properties(path: Path) -> dict[str, str]:
    """Read a file of `key=value` or `key value` lines."""
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    return {line[: (end := _key_end(line))]: line[end:].strip(" =") for line in lines}


def _key_end(line: str) -> int:
    """Find where a key ends: at the first blank or equals sign."""
    return min(len(line.split("=", 1)[0]), len(line.split(None, 1)[0]))


def test_supervisor_knows_every_service_and_starts_none_by_itself(plan: StackPlan) -> None:
    render_stack(plan, build_services(plan))

    config = configparser.RawConfigParser()
    config.read(plan.settings.stack / "supervisord.conf")
    programs = [name.removeprefix("program:") for name in config.sections() if ":" in name]
    assert [name for name in programs if name in SERVICE_PARTS] == list(SERVICE_PARTS)
    for name in SERVICE_PARTS:
        section = config[f"program:{name}"]
        assert section["autostart"] == "false"
        assert section["stopasgroup"] == section["killasgroup"] == "true"
        assert Path(section["command"].strip('"')).is_file()


def test_everything_listens_on_this_machine_only(plan: StackPlan) -> None:
    render_stack(plan, build_services(plan))

    kafka = read_properties(plan.settings.stack / "kafka.properties")
    spark = read_properties(plan.settings.stack / "spark" / "spark-defaults.conf")
    airflow = airflow_environment(plan.settings, PORTS, plan.keys)
    assert kafka["listeners"] == "PLAINTEXT://127.0.0.1:21001,CONTROLLER://127.0.0.1:21002"
    assert spark["spark.connect.grpc.binding.address"] == "127.0.0.1"
    assert spark["spark.driver.bindAddress"] == "127.0.0.1"
    assert airflow["AIRFLOW__API__HOST"] == "127.0.0.1"


def test_spark_opens_the_catalog_that_clients_are_told(plan: StackPlan) -> None:
    render_stack(plan, build_services(plan))

    spark = read_properties(plan.settings.stack / "spark" / "spark-defaults.conf")
    connection = json.loads(
        airflow_environment(plan.settings, PORTS, plan.keys)["AIRFLOW_CONN_ICEBERG_DEFAULT"]
    )["extra"]
    assert spark["spark.sql.catalog.lake.uri"] == f"jdbc:sqlite:file:{plan.settings.catalog_file}"
    assert connection["uri"] == f"sqlite:///{plan.settings.catalog_file}"
    assert spark["spark.sql.catalog.lake.warehouse"] == connection["warehouse"]


def test_rendering_again_changes_nothing(plan: StackPlan) -> None:
    services = build_services(plan)
    render_stack(plan, services)
    files = {p: p.read_bytes() for p in plan.settings.stack.rglob("*") if p.is_file()}

    render_stack(plan, services)

    again = {p: p.read_bytes() for p in plan.settings.stack.rglob("*") if p.is_file()}
    assert again == files


def test_start_scripts_hold_secrets_and_are_their_owners_alone(plan: StackPlan) -> None:
    render_stack(plan, build_services(plan))

    scripts = list((plan.settings.stack / "run").iterdir())
    assert len(scripts) == len(SERVICE_PARTS)
    assert {script.stat().st_mode & 0o777 for script in scripts} == {0o700}
    assert "jwt-key" in (plan.settings.stack / "run" / "airflow_scheduler").read_text()
    assert "jwt-key" not in (plan.settings.stack / "run" / "kafka").read_text()


def test_a_start_script_hands_over_any_value_unchanged(tmp_path: Path) -> None:
    value = """quotes ' and ", $HOME, `date`, %d, ;semicolon\nand a second line"""
    command = ("sh", "-c", 'printf %s "$VALUE"')
    service = Service("kafka", "kafka", 10, tmp_path, command, {"VALUE": value}, 1)
    script = tmp_path / "run"
    script.write_text(render_script(service))

    done = subprocess.run(["/bin/sh", script], capture_output=True, text=True, check=True)

    assert done.stdout == value


def test_each_process_carries_the_mark_by_which_down_knows_it(plan: StackPlan) -> None:
    for service in build_services(plan):
        assert service.environment["FRAZIL_HOME"] == str(plan.settings.home)
        assert service.environment["FRAZIL_STACK_SERVICE"] == service.name


def test_a_deep_home_still_gets_a_socket_that_fits(tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 100)

    path = socket_path(deep)

    assert len(str(path)) < 100
    assert path != socket_path(tmp_path / ("y" * 100))


def test_the_registry_keeps_to_this_machine_and_its_schemas_on_disk(plan: StackPlan) -> None:
    service = next(s for s in build_services(plan) if s.name == "registry")

    assert service.environment["QUARKUS_HTTP_HOST"] == "127.0.0.1"
    assert service.environment["QUARKUS_HTTP_PORT"] == str(PORTS.registry)
    assert str(plan.settings.home) in service.environment["APICURIO_DATASOURCE_URL"]
    connection = airflow_environment(plan.settings, PORTS, plan.keys)
    assert f":{PORTS.registry}/" in connection["AIRFLOW_CONN_SCHEMA_REGISTRY_DEFAULT"]


def test_a_failpoint_that_a_shell_exports_reaches_no_service(
    plan: StackPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(failpoints.VARIABLE, "publish.before-commit")
    monkeypatch.setenv("KEPT", "yes")

    environment = supervisor_environment(plan.settings)

    assert environment["KEPT"] == "yes"
    assert failpoints.VARIABLE not in environment
    assert not [s.name for s in build_services(plan) if failpoints.VARIABLE in s.environment]
