"""Tables that another engine changed so that Frazil cannot write them are named, not retried."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from pyiceberg.exceptions import ServerError, ValidationError
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.table import Table
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.transforms import UnknownTransform
from support.lake import Lake
from support.log_lake import LogInMemory, Pipeline

from frazil.connections.clients import CatalogPreset
from frazil.errors import (
    CatalogRejectedError,
    CatalogUnavailableError,
    CommitContentionError,
    FrazilError,
    IncompatibleTableError,
)
from frazil.iceberg.catalog import TableStore, dead_letters_name, translated_errors
from frazil.iceberg.commit_retry import retry_commit
from frazil.iceberg.ledger_archive import archive_all_entries
from frazil.iceberg.table_compatibility import list_obstacles
from frazil.ingest.dead_letters import ensure_dead_letters_table
from frazil.ledger.authors import Author
from frazil.observability.status import locate_offset, read_status
from frazil.recovery.decisions import accept_gap
from frazil.recovery.halt_resolution import reingest
from frazil.workspace import Workspace


def rewrite_metadata(table: Table, **changes: object) -> None:
    """Change the metadata file as another engine would, where PyIceberg refuses to."""
    path = Path(table.metadata_location.removeprefix("file://"))
    changed = table.metadata.model_copy(update=changes)
    path.write_text(changed.model_dump_json(by_alias=True))


def lift(table: Table) -> None:
    path = Path(table.metadata_location.removeprefix("file://"))
    plain = path.read_text().replace('"format-version":2', '"format-version":3,"next-row-id":0')
    path.write_text(plain)


def set_property(key: str, value: str) -> Callable[[Table], None]:
    def change(table: Table) -> None:
        with table.transaction() as transaction:
            transaction.set_properties({key: value})

    return change


def partition_strangely(table: Table) -> None:
    field = PartitionField(1, 1000, UnknownTransform("zorder[4]"), "by_zorder")
    spec = PartitionSpec(field, spec_id=7)
    rewrite_metadata(table, partition_specs=[spec], default_spec_id=7)


def sort_strangely(table: Table) -> None:
    order = SortOrder(SortField(1, UnknownTransform("hilbert")), order_id=7)
    rewrite_metadata(table, sort_orders=[order], default_sort_order_id=7)


CHANGES: Mapping[str, tuple[Callable[[Table], None], str, str]] = {
    "format 3": (lift, "format version is 3", "register the table's newest metadata file"),
    "ORC": (set_property("write.format.default", "orc"), "write.format.default is orc", "UNSET"),
    "Avro": (set_property("write.format.default", "avro"), "is avro: it must be parquet", "UNSET"),
    "codec": (set_property("write.parquet.compression-codec", "brotli"), "is brotli", "UNSET"),
    "mode": (set_property("write.distribution-mode", "zorder"), "is zorder", "UNSET"),
    "number": (set_property("write.target-file-size-bytes", "64 MB"), "whole number", "UNSET"),
    "level": (set_property("write.parquet.compression-level", "fast"), "is fast: it", "UNSET"),
    "class": (set_property("write.location-provider.impl", "a.B"), "is refused: other", "UNSET"),
    "encryption": (set_property("encryption.key-id", "k1"), "cannot read encrypted", "UNSET"),
    "partition": (partition_strangely, "field by_zorder has an unknown", "DROP PARTITION FIELD"),
    "sort order": (sort_strangely, "sort order has an unknown transform", "WRITE UNORDERED"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_every_step_names_what_keeps_it_from_writing(
    lake: Lake, work: Workspace, name: str
) -> None:
    change, reason, fix = CHANGES[name]
    plan = lake.plan(3, 2)
    staged = lake.stage(plan)
    change(lake.table)
    before = lake.table.metadata_location

    steps: list[Callable[[], object]] = [
        lambda: lake.plan(3, 2),
        lambda: lake.stage(plan),
        lambda: lake.publish(plan, staged),
        lambda: accept_gap(work, Author("jane@example.org", "why")),
    ]
    for step in steps:
        with pytest.raises(IncompatibleTableError) as caught:
            step()
        assert reason in caught.value.facts
        assert fix in caught.value.next_step
    assert lake.table.metadata_location == before


@pytest.mark.parametrize("name", ["format 3", "ORC"])
def test_tables_beside_the_streams_own_are_checked_too(lake: Lake, name: str) -> None:
    change, reason, _ = CHANGES[name]
    lake.ingest(3, 2)
    archive_all_entries(lake.store, lake.history)
    ensure_dead_letters_table(lake.store, "demo.orders")
    change(lake.store.load("frazil.ledger"))
    change(lake.store.load(dead_letters_name("demo.orders")))
    lake.ingest(5, 5)

    with pytest.raises(IncompatibleTableError, match=rf"frazil\.ledger cannot be .*{reason}"):
        archive_all_entries(lake.store, lake.history)
    with pytest.raises(IncompatibleTableError, match=rf"orders__dead_letters .*{reason}"):
        ensure_dead_letters_table(lake.store, "demo.orders")


@pytest.mark.parametrize("name", ["format 3", "ORC"])
def test_such_a_table_can_still_be_read_and_audited(lake: Lake, work: Workspace, name: str) -> None:
    ensure_dead_letters_table(lake.store, "demo.orders")
    pipeline = Pipeline(lake, LogInMemory())
    pipeline.log.produce(0, 0, 1, 2)
    pipeline.ingest()

    CHANGES[name][0](lake.table)

    assert locate_offset(work, "orders", 0, 1).found
    assert pipeline.audit().findings == ()
    with pytest.raises(IncompatibleTableError):
        reingest(work, None)


def test_what_only_maintenance_minds_is_no_obstacle(lake: Lake) -> None:
    set_property("gc.enabled", "false")(lake.table)
    set_property("write.metadata.compression-codec", "gzip")(lake.table)

    assert list_obstacles(lake.table) == ()


def test_a_table_of_a_version_to_come_is_named_and_not_retried(lake: Lake) -> None:
    table = lake.table
    path = Path(table.metadata_location.removeprefix("file://"))
    path.write_text(path.read_text().replace('"format-version":2', '"format-version":9'))

    with pytest.raises(IncompatibleTableError, match="metadata cannot be read"):
        lake.store.find("demo.orders")


def test_status_names_the_halt_and_the_next_step(
    lake: Lake, work: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("frazil.kafka.cluster.TIMEOUT_SECONDS", 0.1)
    lake.ingest(3, 2)
    lift(lake.table)

    status = read_status(work)

    assert status.state == "IncompatibleTable"
    assert "format version is 3" in str(status.problem)


def from_pyiceberg() -> None:
    TableStore(CatalogPreset("lake", {"type": "no such type"})).catalog.list_namespaces()


def from_sql() -> None:
    TableStore(CatalogPreset("lake", {"type": "sql", "uri": "nodb://x"})).catalog.list_tables("a")


def from_validation() -> None:
    with translated_errors("loading"):
        raise ValidationError("unknown")


@pytest.mark.parametrize("fail", [from_pyiceberg, from_sql, from_validation])
def test_a_definite_error_is_tried_once(fail: Callable[[], None]) -> None:
    calls = []

    def attempt() -> None:
        calls.append(1)
        fail()

    with pytest.raises(CatalogRejectedError):
        retry_commit("testing", attempt)

    assert len(calls) == 1


def test_an_error_that_may_pass_is_retried(lake: Lake) -> None:
    assert lake.stream.stream
    calls = []

    def attempt() -> None:
        calls.append(1)
        with translated_errors("loading"):
            raise ServerError("502")

    with pytest.raises((CatalogUnavailableError, CommitContentionError)) as caught:
        retry_commit("testing", attempt)

    assert isinstance(caught.value, FrazilError)
    assert len(calls) > 1
