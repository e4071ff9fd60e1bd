"""Collect the facts of a readiness scorecard from Kafka, the table and the stream file."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.sorting import SortField, SortOrder

from frazil.connections.clients import find_registry_config
from frazil.connections.lookup import is_secret
from frazil.errors import ConnectionMissingError, MissingTableError, TableDroppedError
from frazil.events import Event, read_watch
from frazil.iceberg.table_schema import build_sort_order
from frazil.iceberg.table_view import TableView
from frazil.ledger.foreign_snapshots import count_foreign_snapshots
from frazil.ledger.recovery_point import History, walk_ancestors
from frazil.maintenance.messages import TableReport
from frazil.maintenance.tables import summarize_table
from frazil.observability.dead_letter_report import DeadLetterReport, report_dead_letters
from frazil.observability.freshness import FreshnessReport, judge_freshness
from frazil.observability.timeline_table import find_drills
from frazil.observability.watch import gather_freshness_facts, read_table
from frazil.schemas.inferred_columns import with_columns
from frazil.schemas.partition_evolution import compare_partitions, describe_transform
from frazil.state_tables.state_status import StateStatus, read_state_status
from frazil.streams.models import Stream
from frazil.streams.sections import BY_REGISTRY
from frazil.streams.table_properties import list_wrong_properties
from frazil.streams.timestamps import HOUR_MS
from frazil.workspace import Workspace, retention_window

DRILL_DAYS = 90
"""Drills older than this do not count."""
_OWN_CREDENTIALS = frozenset({"glue", "dynamodb", "bigquery"})
"""Catalog types that always use the cloud's credentials."""
_CERTIFICATES = ("ssl.certificate.", "ssl.keystore.", "ssl.client.cert")
_REGISTRY_USERS = ("basic.auth.", "bearer.auth.", *_CERTIFICATES)


@dataclass(frozen=True)
class TableChecks:
    """Other writers' snapshots, differences of the layout, and the age of main's oldest snapshot.

    `kept_hours` is None if no snapshot has expired.
    """

    foreign_snapshots: int = 0
    layout: tuple[str, ...] = ()
    kept_hours: int | None = None


@dataclass(frozen=True)
class Authentication:
    """Authentication of one connection, as text, and whether it identifies the client."""

    text: str
    identifies_client: bool


@dataclass(frozen=True)
class ReadinessFacts:
    """Facts of a scorecard; `pending_changes` are schema changes that wait for a decision.

    `unmapped_fields` are fields of the newest batch without a matching column,
    `watch_age_seconds` the time since the watch last ran on this machine.
    """

    stream: Stream
    freshness: FreshnessReport
    authentication: tuple[Authentication, ...]
    is_compacted: bool
    rollback_hours: int
    expire_hours: int
    table: TableReport
    dead_letters: DeadLetterReport | None
    drills: Mapping[str, Event]
    checks: TableChecks
    pending_changes: tuple[str, ...] = ()
    unmapped_fields: tuple[str, ...] = ()
    watch_age_seconds: float | None = None
    state_table: StateStatus | None = None


def gather_readiness(work: Workspace) -> ReadinessFacts:
    """Collect everything that the checks need.

    Raises:
        FrazilError: the catalog or the broker did not answer.
    """
    reading, window, now = read_table(work), retention_window(work), datetime.now(UTC)
    facts = gather_freshness_facts(work, reading)
    view, state = reading.view or TableView(work.store, work.stream.table.name), reading.state
    policies = [
        work.kafka.fetch_topic_settings(topic).get("cleanup.policy", "delete")
        for topic in work.stream.source.names
    ]
    try:
        dead_letters = report_dead_letters(work)
    except (MissingTableError, TableDroppedError):  # the freshness tells it
        dead_letters = None
    return ReadinessFacts(
        stream=work.stream,
        freshness=judge_freshness(facts, work.stream.freshness, now),
        authentication=read_authentication(work),
        is_compacted=any("compact" in policy for policy in policies),
        rollback_hours=window.rollback_ms // HOUR_MS,
        expire_hours=window.expire_ms // HOUR_MS,
        table=summarize_table(work, view),
        dead_letters=dead_letters,
        drills=find_drills(work, now - timedelta(days=DRILL_DAYS)),
        checks=_read_table_checks(work, view),
        pending_changes=facts.pending_changes,
        unmapped_fields=facts.unmapped_fields,
        watch_age_seconds=watched.age_seconds if (watched := read_watch()) else None,
        state_table=read_state_status(work.stream, view, state) if state else None,
    )


def _read_table_checks(work: Workspace, view: TableView) -> TableChecks:
    try:
        table, history = view.table, view.history
    except (MissingTableError, TableDroppedError):
        return TableChecks()
    return TableChecks(
        foreign_snapshots=count_foreign_snapshots(history),
        layout=list_differences(table, with_columns(work, view).stream),
        kept_hours=find_kept_hours(history, int(time.time() * 1000)),
    )


def find_kept_hours(history: History, now_ms: int) -> int | None:
    """Return how far back main can be read; None if no snapshot has expired."""
    ancestry = list(walk_ancestors(history))
    kept = [entry for entry in ancestry if entry.snapshot_id in history.entries]
    if len(kept) == len(ancestry):
        return None
    return (now_ms - kept[-1].committed_at_ms) // HOUR_MS


def read_authentication(work: Workspace) -> tuple[Authentication, ...]:
    """Describe the authentication of the stream's connections: Kafka, catalog, registries."""
    stream = work.stream
    sections = [part for part in (stream.value, stream.key) if part.convert in BY_REGISTRY]
    registries = dict.fromkeys(part.registry for part in sections)
    return (
        describe_kafka(work.kafka_config),
        describe_catalog(work.store.preset.properties),
        *(_describe_connection(name) for name in registries),
    )


def describe_kafka(config: Mapping[str, str]) -> Authentication:
    """Describe authentication by librdkafka's settings; TLS alone identifies only the broker."""
    protocol = config.get("security.protocol", "PLAINTEXT").upper()
    if protocol.startswith("SASL_"):
        mechanism = config.get("sasl.mechanism", config.get("sasl.mechanisms", "GSSAPI"))
        return Authentication(f"Kafka: {protocol} ({mechanism})", identifies_client=True)
    if protocol == "SSL" and _has_any(config, _CERTIFICATES):
        return Authentication("Kafka: SSL with a client certificate", identifies_client=True)
    without = "SSL without a client certificate" if protocol == "SSL" else protocol
    return Authentication(f"Kafka: no authentication ({without})", identifies_client=False)


def describe_catalog(properties: Mapping[str, str]) -> Authentication:
    """Describe authentication of a catalog by PyIceberg's properties."""
    kind, uri = properties.get("type", "rest"), properties.get("uri", "")
    if uri.startswith("sqlite:"):
        return Authentication("catalog: a local file, by its permissions", identifies_client=True)
    if kind in _OWN_CREDENTIALS or properties.get("rest.sigv4-enabled", "").lower() == "true":
        return Authentication(f"catalog ({kind}): cloud credentials", identifies_client=True)
    if any(is_secret(key, value) for key, value in properties.items() if "s3." not in key):
        return Authentication(f"catalog ({kind}): credentials", identifies_client=True)
    return Authentication(f"catalog ({kind}): no authentication", identifies_client=False)


def describe_registry(config: Mapping[str, str]) -> Authentication:
    """Describe authentication of a schema registry by its client's settings."""
    if _has_any(config, _REGISTRY_USERS) or is_secret("url", config.get("url", "")):
        return Authentication("schema registry: credentials", identifies_client=True)
    return Authentication("schema registry: no authentication", identifies_client=False)


def _describe_connection(name: str) -> Authentication:
    try:
        return describe_registry(find_registry_config(name))
    except ConnectionMissingError:
        text = f"schema registry: connection {name} is not defined"
        return Authentication(text, identifies_client=False)


def _has_any(config: Mapping[str, str], beginnings: tuple[str, ...]) -> bool:
    return any(key.startswith(beginnings) and value for key, value in config.items())


def list_differences(table: Table, stream: Stream) -> tuple[str, ...]:
    """List differences between file and table in partitioning, sort order and properties.

    A table gets them when it is created; later only an approved change of partitions is applied.
    """
    schema = table.schema()
    try:
        partitions = compare_partitions(table, schema, stream.partition_fields)
        wanted_order = build_sort_order(schema, stream.table.sort_by)
    except ValueError:  # a column that the table does not have yet: the schema review reports it
        return ()
    differences = [f"partition_by is {c.after}, the table has {c.before}" for c in partitions]
    if stream.table.sort_by and _list_sorts(wanted_order) != _list_sorts(table.sort_order()):
        in_file = ", ".join(stream.table.sort_by)
        in_table = ", ".join(_describe_sort(schema, field) for field in table.sort_order().fields)
        differences.append(f"sort_by is {in_file}, the table has {in_table or 'none'}")
    differences += [
        f"property {key} is {value}, the table has {table.properties.get(key, 'none')}"
        for key, value in stream.table.properties.items()
        if table.properties.get(key) != value and key != "format-version"
    ]
    differences += [
        f"property {each.key} of the table is {each.value}: it {each.reason}"
        for each in list_wrong_properties(table.properties, table.location())
    ]
    return tuple(differences)


def _describe_sort(schema: Schema, field: SortField) -> str:
    return f"{describe_transform(schema, field)} {field.direction} {field.null_order}"


def _list_sorts(order: SortOrder) -> list[tuple[int, str]]:
    return [(field.source_id, str(field.transform)) for field in order.fields]
