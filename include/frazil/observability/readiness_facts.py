"""What a scorecard is made of: Kafka, the table and its file are asked, nothing is written."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.sorting import SortField, SortOrder

from frazil.connections import find_registry_config, is_secret
from frazil.errors import ConnectionMissingError, MissingTableError
from frazil.events import Event
from frazil.iceberg.table_schema import build_sort_order
from frazil.iceberg.table_view import TableView
from frazil.ledger.foreign_snapshots import count_foreign_snapshots
from frazil.ledger.recovery_point import History, walk_ancestors
from frazil.maintenance.messages import TableReport
from frazil.maintenance.tables import summarize_table
from frazil.observability.dead_letter_report import DeadLetterReport, report_dead_letters
from frazil.observability.freshness import FreshnessReport, judge_freshness
from frazil.observability.timeline_table import find_drills
from frazil.observability.watch import gather_facts
from frazil.schemas.inferred_columns import with_columns
from frazil.schemas.partition_evolution import compare_partitions, describe_transform
from frazil.streams.models import Stream
from frazil.streams.sections import BY_REGISTRY
from frazil.streams.timestamps import HOUR_MS
from frazil.workspace import Workspace, retention_window

DRILL_DAYS = 90


@dataclass(frozen=True)
class Surroundings:
    """What stands around the rows: others' snapshots, the layout, and how far back it reads.

    `kept_hours` is the age of the oldest snapshot of main that is still there; None where all are.
    """

    foreign_snapshots: int = 0
    layout: tuple[str, ...] = ()
    kept_hours: int | None = None


@dataclass(frozen=True)
class Access:
    """How one part is asked; `is_known` says whether it can tell who asks."""

    text: str
    is_known: bool


@dataclass(frozen=True)
class ReadinessFacts:
    """What a scorecard is made of; `put_aside` are schema changes that wait for an answer.

    `unnamed` are fields of the newest batch that no column names.
    """

    stream: Stream
    freshness: FreshnessReport
    access: tuple[Access, ...]
    is_compacted: bool
    rollback_hours: int
    expire_hours: int
    table: TableReport
    letters: DeadLetterReport | None
    drills: Mapping[str, Event]
    around: Surroundings
    put_aside: tuple[str, ...] = ()
    unnamed: tuple[str, ...] = ()


def gather_readiness(work: Workspace) -> ReadinessFacts:
    """Ask everything that the lines need.

    Raises:
        FrazilError: the catalog or the broker cannot be asked.
    """
    facts, window, now = gather_facts(work), retention_window(work), datetime.now(UTC)
    policies = [
        work.kafka.fetch_topic_settings(topic).get("cleanup.policy", "delete")
        for topic in work.stream.source.names
    ]
    try:
        letters = report_dead_letters(work)
    except MissingTableError:
        letters = None
    return ReadinessFacts(
        stream=work.stream,
        freshness=judge_freshness(facts, work.stream.freshness, now),
        access=read_access(work),
        is_compacted=any("compact" in policy for policy in policies),
        rollback_hours=window.rollback_ms // HOUR_MS,
        expire_hours=window.expire_ms // HOUR_MS,
        table=summarize_table(work),
        letters=letters,
        drills=find_drills(work, now - timedelta(days=DRILL_DAYS)),
        around=_read_surroundings(work),
        put_aside=facts.put_aside,
        unnamed=facts.unnamed,
    )


def _read_surroundings(work: Workspace) -> Surroundings:
    try:
        view = TableView(work.store, work.stream.table.name)
        table, history = view.table, view.history
    except MissingTableError:
        return Surroundings()
    return Surroundings(
        foreign_snapshots=count_foreign_snapshots(history),
        layout=list_differences(table, with_columns(work, view).stream),
        kept_hours=find_kept_hours(history, int(time.time() * 1000)),
    )


def find_kept_hours(history: History, now_ms: int) -> int | None:
    """Find how far back main can be read, whoever expired the rest; None where nothing is gone."""
    line = list(walk_ancestors(history))
    kept = [entry for entry in line if entry.snapshot_id in history.entries]
    if len(kept) == len(line):
        return None
    return (now_ms - kept[-1].committed_at_ms) // HOUR_MS


_OWN_CREDENTIALS = frozenset({"glue", "dynamodb", "bigquery"})
"""Catalog types that nobody reaches without the cloud's own credentials."""


_CERTIFICATES = ("ssl.certificate.", "ssl.keystore.", "ssl.client.cert")


_REGISTRY_USERS = ("basic.auth.", "bearer.auth.", *_CERTIFICATES)


def read_access(work: Workspace) -> tuple[Access, ...]:
    """Read how each part is asked that the stream uses: Kafka, the catalog, its registries."""
    stream = work.stream
    sections = [part for part in (stream.value, stream.key) if part.convert in BY_REGISTRY]
    registries = dict.fromkeys(part.registry for part in sections)
    return (
        describe_kafka(work.kafka_config),
        describe_catalog(work.store.preset.properties),
        *(_describe_connection(name) for name in registries),
    )


def describe_kafka(config: Mapping[str, str]) -> Access:
    """Tell how a cluster is asked, by librdkafka's settings; TLS alone names only the broker."""
    protocol = config.get("security.protocol", "PLAINTEXT").upper()
    if protocol.startswith("SASL_"):
        mechanism = config.get("sasl.mechanism", config.get("sasl.mechanisms", "GSSAPI"))
        return Access(f"Kafka by {protocol} ({mechanism})", is_known=True)
    if protocol == "SSL" and _has_any(config, _CERTIFICATES):
        return Access("Kafka by SSL with a client certificate", is_known=True)
    without = " without a client certificate" if protocol == "SSL" else ""
    return Access(f"Kafka by {protocol}{without}, as anybody", is_known=False)


def describe_catalog(properties: Mapping[str, str]) -> Access:
    """Tell how a catalog is asked, by PyIceberg's properties."""
    kind, uri = properties.get("type", "rest"), properties.get("uri", "")
    if uri.startswith("sqlite:"):
        return Access("the catalog as a file, by its permissions", is_known=True)
    if kind in _OWN_CREDENTIALS or properties.get("rest.sigv4-enabled", "").lower() == "true":
        return Access(f"the catalog ({kind}) by the cloud's credentials", is_known=True)
    if any(is_secret(key, value) for key, value in properties.items() if "s3." not in key):
        return Access(f"the catalog ({kind}) with credentials", is_known=True)
    return Access(f"the catalog ({kind}) without credentials, as anybody", is_known=False)


def describe_registry(config: Mapping[str, str]) -> Access:
    """Tell how a schema registry is asked, by the settings of its client."""
    if _has_any(config, _REGISTRY_USERS) or is_secret("url", config.get("url", "")):
        return Access("the schema registry with credentials", is_known=True)
    return Access("the schema registry without credentials, as anybody", is_known=False)


def _describe_connection(name: str) -> Access:
    try:
        return describe_registry(find_registry_config(name))
    except ConnectionMissingError:
        return Access(f"the schema registry not at all: {name} is not defined", is_known=False)


def _has_any(config: Mapping[str, str], beginnings: tuple[str, ...]) -> bool:
    return any(key.startswith(beginnings) and value for key, value in config.items())


def list_differences(table: Table, stream: Stream) -> tuple[str, ...]:
    """List partitions, sort order and properties that the file names and the table has otherwise.

    The file is followed when a table is created; later only edited partitions are, by an answer.
    """
    schema = table.schema()
    try:
        partitions = compare_partitions(table, schema, stream.partition_fields)
        wanted_order = build_sort_order(schema, stream.table.sort_by)
    except ValueError:  # a column that the table does not have yet: the schema's review tells
        return ()
    differences = [f"partition_by is {c.after}, the table has {c.before}" for c in partitions]
    if stream.table.sort_by and _list_sorts(wanted_order) != _list_sorts(table.sort_order()):
        asked = ", ".join(stream.table.sort_by)
        own = ", ".join(_describe_sort(schema, field) for field in table.sort_order().fields)
        differences.append(f"sort_by is {asked}, the table has {own or 'none'}")
    differences += [
        f"property {key} is {value}, the table has {table.properties.get(key, 'none')}"
        for key, value in stream.table.properties.items()
        if table.properties.get(key) != value and key != "format-version"
    ]
    return tuple(differences)


def _describe_sort(schema: Schema, field: SortField) -> str:
    return f"{describe_transform(schema, field)} {field.direction} {field.null_order}"


def _list_sorts(order: SortOrder) -> list[tuple[int, str]]:
    return [(field.source_id, str(field.transform)) for field in order.fields]
