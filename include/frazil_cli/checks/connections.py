"""Try the connections of streams by each client that uses them, and describe its rights.

Kafka is tried by librdkafka and by Spark's Java client, the catalog by PyIceberg and by Spark: with
a scratch table in the stream's namespace, which is dropped afterwards.
"""

import secrets
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial

import pyarrow as pa
from pyiceberg.exceptions import (
    NamespaceAlreadyExistsError,
    NamespaceNotEmptyError,
    NoSuchTableError,
)
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from frazil.connections.clients import find_registry_config
from frazil.errors import FrazilError
from frazil.iceberg.catalog import NewTable, TableStore, translated_errors
from frazil.kafka.client_settings import to_spark_options, translate_settings
from frazil.schemas.payloads import list_payloads
from frazil.spark.job_errors import parse_job_error
from frazil.spark.messages import ProbeRequest, ProbeResult
from frazil.workspace import Workspace
from frazil_cli.checks.check import Check, attempt, failed

SCRATCH_PREFIX = "frazil_doctor_"
_BRANCH = "frazil_doctor"
_JOB = "probe_connections"


def check_connections(works: Sequence[Workspace]) -> Iterator[Check]:
    """Try each connection of the streams once by each client; the detail is the rights."""
    seen: set[tuple[str, ...]] = set()
    for work in works:
        stream = work.stream
        kafka, catalog = stream.source.connection, stream.table.connection
        topics = tuple(stream.source.names)
        if (kafka, *topics) not in seen:
            yield attempt(_name(kafka, "librdkafka"), partial(_use_kafka, work))
        key = (kafka, *topics, catalog, stream.batch.engine)
        if key not in seen:
            yield from _check_catalog_and_spark(work, is_new_catalog=(catalog,) not in seen)
        registries = {(p.options.registry,) for p in list_payloads(stream)}
        for (registry,) in sorted(registries - seen):
            yield attempt(_name(registry, "registry client"), partial(_use_registry, registry))
        seen |= {(kafka, *topics), (catalog,), key, *registries}


def _name(connection: str, client: str) -> str:
    return f"Connection {connection} by {client}"


def _use_kafka(work: Workspace) -> str:
    """Describe and read each topic of the stream."""
    for topic in work.stream.source.names:
        work.kafka.fetch_topic(topic, work.stream.source.isolation)
        work.kafka.probe_read(topic)
    unused = translate_settings(work.kafka_config).unused
    rights = f"describes and reads {', '.join(work.stream.source.names)}"
    return rights + (f"; settings without effect: {', '.join(unused)}" if unused else "")


def _use_registry(connection: str) -> str:
    from frazil.kafka.schema_registry import SchemaRegistry

    return f"lists {SchemaRegistry(find_registry_config(connection)).probe()}"


def _check_catalog_and_spark(work: Workspace, *, is_new_catalog: bool) -> Iterator[Check]:
    """Try the catalog by PyIceberg, then both connections by Spark, then drop the table."""
    name = _name(work.stream.table.connection, "PyIceberg")
    namespace = work.stream.table.name.rpartition(".")[0]
    table = f"{namespace}.{SCRATCH_PREFIX}{secrets.token_hex(4)}"
    usable, own_namespace = None, ""
    try:
        try:
            own_namespace = namespace if _create_namespace(work.store, namespace) else ""
            rights = _use_catalog(work.store, table)
        except FrazilError as error:
            yield failed(name, error)
        else:
            usable = table
            if is_new_catalog:
                yield Check(name, is_good=True, detail=rights)
        yield from _check_spark(work, usable)
    finally:
        # After a failure the catalog may refuse this, too; the failure is already reported.
        with suppress(*(() if usable else (FrazilError,))):
            _drop(work.store, table, own_namespace)


def _create_namespace(store: TableStore, namespace: str) -> bool:
    """Create the namespace; return whether it did not exist."""
    with translated_errors(f"creating namespace {namespace} in catalog {store.preset.name}"):
        try:
            store.catalog.create_namespace(namespace)
        except NamespaceAlreadyExistsError:
            return False
    return True


def _use_catalog(store: TableStore, name: str) -> str:
    """Create a table, commit a row and a branch, and load it again."""
    schema = Schema(NestedField(1, "id", LongType(), required=False))
    table = store.create(name, NewTable(schema))
    with translated_errors(f"writing to table {name} of catalog {store.preset.name}"):
        table.append(pa.table({"id": pa.array([1], pa.int64())}))
        head = table.current_snapshot()
        table.manage_snapshots().create_branch(head.snapshot_id if head else 0, _BRANCH).commit()
    if _BRANCH not in store.load(name).metadata.refs:
        return "creates, commits and writes, but does not store branches: it cannot be used"
    return "creates, commits, branches and writes"


def _drop(store: TableStore, table: str, namespace: str) -> None:
    with translated_errors(f"dropping table {table} of catalog {store.preset.name}"):
        with suppress(NoSuchTableError):
            store.catalog.purge_table(table)
        if namespace:
            with suppress(NamespaceNotEmptyError):
                store.catalog.drop_namespace(namespace)


def _check_spark(work: Workspace, table: str | None) -> Iterator[Check]:
    """Try both connections by Spark."""
    engine = f"Spark ({work.stream.batch.engine})"
    source = _name(work.stream.source.connection, engine)
    try:
        ranges = {topic: _choose_range(work, topic) for topic in work.stream.source.names}
        request = ProbeRequest(
            catalog=work.store.preset.name,
            table=table,
            kafka_options=to_spark_options(work.kafka_config),
            ranges=ranges,
            session_conf=work.store.preset.spark_conf(),
        )
        result = work.engine.run_job(_JOB, request, ProbeResult)
    except FrazilError as error:
        yield failed(source, error)
        return
    names = ", ".join(work.stream.source.names)
    brokers = request.kafka_options["kafka.bootstrap.servers"]
    read = parse_job_error(_JOB, result.kafka, brokers=brokers)
    yield _describe(source, read, f"describes and reads {names}")
    if table:
        used = parse_job_error(_JOB, result.catalog)
        catalog = _name(work.stream.table.connection, engine)
        yield _describe(catalog, used, "reads, commits and writes")


def _choose_range(work: Workspace, topic: str) -> dict[int, tuple[int, int]]:
    """Return the newest record of a topic; an empty range if it has none, or cannot be read."""
    try:
        facts = work.kafka.fetch_topic(topic, work.stream.source.isolation)
    except FrazilError:
        return {0: (0, 0)}  # Spark's client is tried all the same
    filled = [(p, o) for p, o in enumerate(facts.partitions) if o.end > o.earliest]
    partition, offsets = filled[0] if filled else (0, facts.partitions[0])
    return {partition: (max(offsets.end - 1, offsets.earliest), offsets.end)}


def _describe(name: str, error: FrazilError | None, rights: str) -> Check:
    return failed(name, error) if error else Check(name, is_good=True, detail=rights)
