"""The description of a stack for its clients (`stack.json`), and its status with processes."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from frazil.errors import StackError
from frazil_stack.airflow_environment import airflow_url, catalog_properties, registry_url
from frazil_stack.credentials import AIRFLOW_USER, PASSWORD_FILE, write_private
from frazil_stack.ports import LOOPBACK, Ports
from frazil_stack.processes import StackProcess, find_processes, measure_memory
from frazil_stack.services import SERVICE_PARTS, SUPERVISOR_SERVICE
from frazil_stack.settings import CATALOG_NAME, PartName, StackSettings
from frazil_stack.supervisor import ServiceInfo, connect_supervisor

StackState = Literal["up", "partly up", "down"]


class _Record(BaseModel):
    """An immutable value that is written as JSON."""

    model_config = ConfigDict(frozen=True)


class KafkaAddress(_Record):
    """The bootstrap address of Kafka."""

    bootstrap: str


class CatalogAddress(_Record):
    """The arguments of `pyiceberg.catalog.load_catalog(name, **properties)`."""

    name: str
    properties: dict[str, str]


class AirflowAddress(_Record):
    """The address of Airflow, its user, and the file of the password."""

    url: str
    user: str
    password_file: str


class SparkAddress(_Record):
    """The argument of `SparkSession.builder.remote(url)`."""

    url: str


class RegistryAddress(_Record):
    """The address of the Confluent API of the schema registry, an optional part."""

    url: str


class StackDescription(_Record):
    """The addresses that clients need, valid until the ports change; no pids, no secrets."""

    home: str
    kafka: KafkaAddress
    catalog: CatalogAddress
    airflow: AirflowAddress
    spark_connect: SparkAddress
    schema_registry: RegistryAddress


class ServiceStatus(_Record):
    """The state of one service; `pid` is None unless it runs."""

    part: PartName | None
    state: str
    pid: int | None
    rss_mb: int
    pss_mb: int | None


class StackStatus(StackDescription):
    """The description, and the services that run now.

    Memory is in MiB, summed over all processes; `pss_mb` counts shared pages once.
    """

    state: StackState
    parts: dict[str, ServiceStatus]
    rss_mb: int
    pss_mb: int | None


def describe_stack(settings: StackSettings, ports: Ports) -> StackDescription:
    """Return the description of a stack."""
    return StackDescription(
        home=str(settings.home),
        kafka=KafkaAddress(bootstrap=f"{LOOPBACK}:{ports.kafka}"),
        catalog=CatalogAddress(name=CATALOG_NAME, properties=catalog_properties(settings)),
        airflow=AirflowAddress(
            url=airflow_url(ports),
            user=AIRFLOW_USER,
            password_file=str(settings.airflow / PASSWORD_FILE),
        ),
        spark_connect=SparkAddress(url=f"sc://{LOOPBACK}:{ports.spark_connect}"),
        schema_registry=RegistryAddress(url=registry_url(ports)),
    )


def save_description(settings: StackSettings, ports: Ports) -> None:
    """Write `stack.json`, from which Frazil takes its default connections."""
    text = describe_stack(settings, ports).model_dump_json(indent=2)
    write_private(settings.stack / "stack.json", text + "\n")


def load_description(home: Path) -> StackDescription:
    """Read `stack.json`.

    Raises:
        StackError: no stack was started in this home, or the file is damaged.
    """
    path = home / "stack" / "stack.json"
    if not path.is_file():
        raise StackError(f"no stack was started here: {path} is missing", "run `frazil stack up`")
    try:
        return StackDescription.model_validate(json.loads(path.read_text()))
    except (ValueError, RecursionError) as error:
        raise StackError(
            f"{path} does not describe a stack: the file is damaged",
            "run `frazil stack up`, which writes it again",
        ) from error


def collect_status(settings: StackSettings, ports: Ports) -> StackStatus:
    """Return the status by supervisor, or by running processes if supervisor has died."""
    supervisor = connect_supervisor(settings.stack)
    infos = supervisor.services() if supervisor else {}
    processes = find_processes(settings.home)
    parts = {
        name: _service_status(name, infos.get(name), processes)
        for name in (SUPERVISOR_SERVICE, *SERVICE_PARTS)
    }
    shares = [part.pss_mb for part in parts.values() if part.pss_mb is not None]
    return StackStatus(
        **describe_stack(settings, ports).model_dump(),
        state=judge_state({name: part.state for name, part in parts.items()}),
        parts=parts,
        rss_mb=sum(part.rss_mb for part in parts.values()),
        pss_mb=sum(shares) if shares else None,
    )


def judge_state(states: Mapping[str, str]) -> StackState:
    """Return "up" if all services of every started part run, "down" if no process runs."""
    running = {name for name, state in states.items() if state == "running"}
    if not running and "orphaned" not in states.values():
        return "down"
    services = running - {SUPERVISOR_SERVICE}
    started = {SERVICE_PARTS[name] for name in states if _is_started(name, states[name])}
    expected = {name for name, part in SERVICE_PARTS.items() if part in started}
    return "up" if services and services == expected else "partly up"


def _is_started(name: str, state: str) -> bool:
    return name in SERVICE_PARTS and state != "stopped"


def _service_status(
    name: str, info: ServiceInfo | None, processes: tuple[StackProcess, ...]
) -> ServiceStatus:
    own = [process for process in processes if process.service == name]
    first = own[0].pid if own else None
    if name == SUPERVISOR_SERVICE:
        state = "running" if own else "stopped"
    elif info is not None:
        state, first = info.state.lower(), info.pid or None
    else:
        state = "orphaned" if own else "stopped"
    memory = measure_memory(own)
    return ServiceStatus(
        part=SERVICE_PARTS.get(name),
        state=state,
        pid=first,
        rss_mb=memory.rss_mb,
        pss_mb=memory.pss_mb,
    )
