"""`doctor`: checks of the machine, the installation, the connections and the running stack."""

import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import psutil  # type: ignore[import-untyped]
import typer

from frazil.connections.clients import (
    CONNECT_CONNECTION,
    find_catalog,
    find_kafka_config,
    find_registry_config,
    find_spark_remote,
)
from frazil.connections.lookup import find_connection, is_given
from frazil.environment import (
    DEFAULT_POOL,
    choose_pool,
    create_pool_command,
    is_wheel,
    shipped_path,
)
from frazil.errors import FrazilError, StreamFileError
from frazil.streams.loading import load_readable_streams
from frazil_cli.checks.check import Check, attempt, failed
from frazil_cli.output import Json, cli_run_id, console, print_json, print_table
from frazil_stack.health import probe_catalog, probe_part
from frazil_stack.jars import CONFIGURATIONS, has_jars, has_registry, jar_files
from frazil_stack.java import find_java
from frazil_stack.ports import PORT_VARIABLES, Ports, find_holder, is_free, load_ports
from frazil_stack.processes import find_processes
from frazil_stack.services import SERVICE_PARTS, ports_of
from frazil_stack.settings import PARTS, PartName, StackSettings, load_settings
from frazil_stack.supervisor import ServiceInfo, connect_supervisor

if TYPE_CHECKING:
    from frazil.iceberg.catalog import TableStore
    from frazil.streams.models import Stream

NEEDED_DISK_GB = 5
NEEDED_MEMORY_GB = 5

_GB = 1024**3
_PYTHONS = ((3, 11), (3, 12))
_PIN = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^]]*\])?==([^\s;]+)", re.MULTILINE)


def examine(settings: StackSettings, *, connections: bool = False) -> tuple[Check, ...]:
    """Run all checks; a failed one does not stop the others.

    With `connections` each connection is also tried by each client that uses it.
    """
    ports = load_ports(settings.stack / "ports.json") or Ports()
    streams, streams_check = _check_streams(settings.streams)
    return (
        _check_python(),
        _check_java(),
        _check_disk(settings.home),
        _check_memory(settings.home),
        *([] if is_wheel() else [_check_make(), _check_packages()]),
        _check_spark_versions(),
        _check_jars(settings),
        *_check_ports(settings, ports),
        streams_check,
        *_check_connections(streams),
        *check_pools(settings, streams),
        *_check_running(settings, ports),
        *(_try_connections(settings.streams, streams) if connections else ()),
    )


def _check_python() -> Check:
    return Check(
        "Python",
        sys.version_info[:2] in _PYTHONS,
        sys.version.split()[0],
        "install Python 3.11, then `make setup`",
    )


def _check_java() -> Check:
    """Check that there is a Java for both Spark and Kafka."""

    def describe_java() -> str:
        java = find_java()
        return f"{java.version} at {java.home}"

    return attempt("Java", describe_java)


def _check_make() -> Check:
    found = shutil.which("make")
    fix = "install make (Debian, Ubuntu: `apt install make`; macOS: `xcode-select --install`)"
    return Check("make", found is not None, found or "not on PATH", fix)


def _check_disk(home: Path) -> Check:
    """Check the free space of the home, or of its nearest existing parent."""
    folder = next(path for path in (home, *home.parents) if path.exists())
    free_gb = shutil.disk_usage(folder).free / _GB
    return Check(
        "Disk",
        free_gb >= NEEDED_DISK_GB,
        f"{free_gb:.1f} GiB free at {folder}",
        f"make {NEEDED_DISK_GB} GiB free, or set FRAZIL_HOME to a folder on another disk",
    )


def _check_memory(home: Path) -> Check:
    """Check the available memory; a running stack has what it needs."""
    free_gb = psutil.virtual_memory().available / _GB
    is_running = bool(find_processes(home))
    return Check(
        "Memory",
        is_running or free_gb >= NEEDED_MEMORY_GB,
        f"{free_gb:.1f} GiB available" + (", stack running" if is_running else ""),
        f"close programs until {NEEDED_MEMORY_GB} GiB are available, or give Spark less memory:"
        " FRAZIL_SPARK_MEMORY=1500m frazil stack up",
    )


def _check_packages() -> Check:
    """Check that the installed packages have the pinned versions."""
    pins = dict(_PIN.findall(shipped_path("requirements.txt").read_text()))
    found = {name: _installed(name) for name in pins}
    wrong = [
        f"{n} {found[n] or 'missing'}, pinned {pin}" for n, pin in pins.items() if found[n] != pin
    ]
    detail = "; ".join(wrong) if wrong else f"{len(pins)} packages as pinned"
    return Check("Packages", not wrong, detail, "`make setup`")


def _check_spark_versions() -> Check:
    """Check that Spark's client and server have the same version, where both are installed."""
    server, client = _installed("pyspark"), _installed("pyspark-client")
    return Check(
        "Spark client",
        server == client or (is_wheel() and server is None),
        f"pyspark {server or 'missing'}, pyspark-client {client or 'missing'}",
        "pin both to the same version in requirements.txt, then `make setup`",
    )


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _check_jars(settings: StackSettings) -> Check:
    """Check the jars; before the first `frazil stack up` none are required."""
    count = sum(len(jar_files(settings, configuration)) for configuration in CONFIGURATIONS)
    is_good = has_jars(settings) or not settings.jars.exists()
    detail = (
        f"{count} in {settings.jars}" if count else "none yet; `frazil stack up` downloads them"
    )
    if not is_good:
        detail = f"{settings.jars} does not match include/stack/ivy.xml"
    return Check("Jars", is_good, detail, "`frazil stack up` downloads them again")


def _check_ports(settings: StackSettings, ports: Ports) -> Iterator[Check]:
    """Check that each port is free or used by the stack of this home."""
    own = {process.pid for process in find_processes(settings.home)}
    for name, variable in PORT_VARIABLES.items():
        port = getattr(ports, name)
        if name == "registry" and not has_registry(settings):
            continue
        title, fix = (
            f"Port {port}",
            f"stop that process, or choose another port: {variable}=0 frazil stack up",
        )
        if is_free(port):
            yield Check(title, is_good=True, detail=f"free for {name}")
            continue
        holder = find_holder(port)
        is_own = holder.pid in own
        detail = (
            f"used by this stack ({name})" if is_own else f"needed for {name}, used by {holder}"
        )
        yield Check(title, is_own, detail, fix)


def _check_streams(folder: Path) -> tuple[Sequence["Stream"], Check]:
    """Read the stream files; return the valid ones, and the check."""
    try:
        good, errors = load_readable_streams(folder)
    except StreamFileError as error:
        return (), failed("Streams", error)
    detail = "; ".join(error.facts for error in errors) or f"{len(good)} valid in {folder}"
    fix = "fix the stream files; `frazil streams` checks them again"
    return good, Check("Streams", not errors, detail, fix)


def _check_connections(streams: Sequence["Stream"]) -> Iterator[Check]:
    """Probe the servers of the connections that the environment defines."""
    from frazil.iceberg.catalog import TableStore
    from frazil.kafka.cluster import KafkaLog
    from frazil.kafka.schema_registry import SchemaRegistry
    from frazil.schemas.payloads import list_payloads

    def probe_kafka(connection_id: str) -> str:
        return KafkaLog(find_kafka_config(connection_id)).fetch_cluster_id()

    def probe_catalog(connection_id: str) -> str:
        return TableStore(find_catalog(connection_id)).probe()

    def probe_registry(connection_id: str) -> str:
        return SchemaRegistry(find_registry_config(connection_id)).probe()

    sources = {stream.source.connection for stream in streams}
    catalogs = {stream.table.connection for stream in streams}
    for connection_id in sorted(filter(is_given, sources)):
        yield _probe_connection(connection_id, probe_kafka)
    for connection_id in sorted(filter(is_given, catalogs)):
        answer = _probe_connection(connection_id, probe_catalog)
        yield answer
        names = {each.table.name for each in streams if each.table.connection == connection_id}
        if answer.is_good:
            yield from _check_tables(TableStore(find_catalog(connection_id)), sorted(names))
    yield from _check_spark(streams)
    registries = {p.options.registry for stream in streams for p in list_payloads(stream)}
    for connection_id in sorted(filter(is_given, registries)):
        yield _probe_connection(connection_id, probe_registry)


def check_pools(settings: StackSettings, streams: Sequence["Stream"]) -> Iterator[Check]:
    """Check the pools of the streams' tables, where `FRAZIL_TABLE_POOLS` names them."""
    from frazil_cli.checks.pools import find_missing_pools

    pools = {choose_pool(stream.table.name) for stream in streams} - {DEFAULT_POOL}
    if not pools:
        return
    try:
        missing = find_missing_pools(settings, pools)
    except FrazilError as error:
        yield failed("Pools", error)
        return
    detail = f"missing in Airflow: {', '.join(missing)}; their tasks would never start"
    yield Check(
        "Pools",
        not missing,
        detail if missing else f"{len(pools)} in Airflow",
        "; ".join(map(create_pool_command, missing)),
    )


def _check_spark(streams: Sequence["Stream"]) -> Iterator[Check]:
    """Probe the Spark connections of the streams' engines: Connect servers, masters, programs."""
    from frazil.spark.engine import SparkEngine
    from frazil.spark.submit import SPARK_CONNECTION, SubmitEngine

    def probe_connect(connection_id: str) -> str:
        return SparkEngine(find_spark_remote(connection_id)).probe()

    def probe_submit(connection_id: str) -> str:
        catalog = find_catalog(catalogs[0])
        return SubmitEngine(find_connection(connection_id), catalog).probe()

    submitted = [stream for stream in streams if stream.batch.engine == "submit"]
    catalogs = [stream.table.connection for stream in submitted]
    if len(submitted) < len(streams) and is_given(CONNECT_CONNECTION):
        yield _probe_connection(CONNECT_CONNECTION, probe_connect)
    if submitted and is_given(SPARK_CONNECTION):
        yield _probe_connection(SPARK_CONNECTION, probe_submit)


def _check_tables(store: "TableStore", names: Iterable[str]) -> Iterator[Check]:
    """Check that no other engine changed the streams' tables so that they cannot be written."""
    from frazil.iceberg.table_compatibility import require_writable_table

    for name in names:
        try:
            table = store.find(name)
            if table is not None:
                require_writable_table(table)
        except FrazilError as error:
            yield failed(f"Table {name}", error)


def _probe_connection(connection_id: str, probe: Callable[[str], str]) -> Check:
    """Probe one server; the detail is its answer, or the error."""
    return attempt(f"Connection {connection_id}", lambda: f"answers: {probe(connection_id)}")


def _check_running(settings: StackSettings, ports: Ports) -> Iterator[Check]:
    """Probe each running part; a stack that is down is not a failure."""
    supervisor = connect_supervisor(settings.stack)
    if supervisor is None:
        orphans = find_processes(settings.home)
        detail = f"supervisor does not run, {len(orphans)} of its processes still do"
        if not orphans:
            detail = "down; `frazil stack up` starts it"
        yield Check("Stack", not orphans, detail, "`frazil stack down`, then `frazil stack up`")
        return
    infos = supervisor.services()
    for part in PARTS:
        own = {n: i for n, i in infos.items() if SERVICE_PARTS.get(n) == part}
        if any(info.state != "STOPPED" for info in own.values()):
            yield _check_part(part, ports, own)
    reason = probe_catalog(settings.catalog_file)
    yield Check(
        "Catalog", reason is None, reason or str(settings.catalog_file), "`frazil stack up`"
    )


def _check_part(part: PartName, ports: Ports, infos: dict[str, ServiceInfo]) -> Check:
    reason = probe_part(part, ports, infos)
    numbers = ", ".join(str(getattr(ports, p)) for name in infos for p in sorted(ports_of(name)))
    return Check(
        part.capitalize(),
        reason is None,
        reason or f"answers on {numbers}",
        f"read {next(iter(infos.values())).log}, then `frazil stack up`",
    )


def _try_connections(folder: Path, streams: Sequence["Stream"]) -> Iterator[Check]:
    """Test each connection with each client that uses it."""
    from frazil.workspace import Workspace
    from frazil_cli.checks.connections import check_connections

    yield from check_connections([Workspace(each, folder, cli_run_id()) for each in streams])


Connections = Annotated[
    bool,
    typer.Option(
        "--connections",
        help="Also test each connection of the streams with each client (librdkafka, Spark, "
        "PyIceberg) and list its permissions. "
        "Creates a scratch table beside each table and drops it.",
    ),
]


def doctor(connections: Connections = False, as_json: Json = False) -> None:
    """Check the machine, the installation, connections and the stack; exit 1 if a check fails.

    Example: frazil doctor --connections
    """
    checks = examine(load_settings(), connections=connections)
    bad = [check for check in checks if not check.is_good]
    if as_json:
        print_json({"is_good": not bad, "checks": [asdict(check) for check in checks]})
    else:
        rows = [(check.name, "ok" if check.is_good else "FAIL", check.detail) for check in checks]
        print_table("frazil doctor", ("check", "result", "details"), rows)
        for check in bad:
            console.print(f"{check.name}: next: {check.fix}", markup=False)
    if bad:
        raise typer.Exit(1)
