"""The scenario that every cell plays: a stream's life, by commands or by the DAGs of an Airflow."""

import json
import os
import time
from pathlib import Path
from urllib.parse import urlparse

from conftest import Lab
from faults.auditor import audit_table
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table
from support.stack_lake import set_back

from conformance.callers import Caller, run
from frazil.connections.clients import find_catalog
from frazil.ingest.blocked_batches import read_blocked
from frazil.ledger.keys import ROWS_QUARANTINED, ROWS_WRITTEN

COLUMNS = {
    "id": "long!",
    "amount": "double",
    "level": "int",
    "customer": "struct<name: string, address: struct<city: string, zip: string>>",
    "lines": "list<struct<sku: string!, price: decimal(9,2)>>",
    "tags": "map<string, string>",
}
SUITE = {
    "name": "amounts",
    "expectations": [
        {
            "type": "expect_column_values_to_be_between",
            "kwargs": {"column": "amount", "min_value": 0},
            "severity": "critical",
        }
    ],
}
LAST_ID = 19
LAST_BATCH = 10
"""The first offset of partition 0 in the batch that is rolled back."""
DAYS = 5
"""Files and snapshots are made this old before they are expired."""


def play(lab: Lab, data: Path | None, caller: Caller) -> None:
    """Play the whole scenario; `data` is the folder that holds the warehouse's files, if any."""
    _ingest(lab, caller)
    _block(lab, caller)
    _read_again(lab, caller)
    _erase_and_recover(lab, caller)
    _maintain(lab, data)
    _audit(lab)


def write_stream(lab: Lab) -> None:
    """Write the stream file and its suite."""
    folder = lab.folder / "expectations"
    folder.mkdir(exist_ok=True)
    (folder / "amounts.json").write_text(json.dumps(SUITE))
    lab.write_stream(
        value={"convert": "json", "columns": COLUMNS},
        quality={"suite": "amounts"},
        maintenance={"expire_hours": 1, "rollback_hours": 0, "orphan_days": 1},
    )


def make_values(count: int, start: int = 0, **changes: object) -> list[bytes | None]:
    """Make records with nested values."""
    return [
        json.dumps(
            {
                "id": i,
                "amount": i + 0.25,
                "level": i,
                "customer": {"name": f"n{i}", "address": {"city": "Ürümqi", "zip": None}},
                "lines": [{"sku": f"s{i}", "price": "12.50"}, {"sku": "x", "price": None}],
                "tags": {"a": str(i)},
                **changes,
            }
        ).encode()
        for i in range(start, start + count)
    ]


def _ingest(lab: Lab, caller: Caller) -> None:
    """Publish rows with nested columns; three records become dead letters."""
    bad = [b"no json", *make_values(1, 900, level=3_000_000_000), *make_values(1, 3, level="x")]
    lab.produce([*make_values(12), *bad])
    assert caller.ingest()
    head = open_table(lab).current_snapshot()
    assert head is not None
    assert head.summary is not None
    assert (head.summary[ROWS_WRITTEN], head.summary[ROWS_QUARANTINED]) == ("12", "3")
    assert read_ids(lab) == list(range(12))


def _block(lab: Lab, caller: Caller) -> None:
    """See that a failed check blocks the batch until a person decides."""
    lab.produce(make_values(2, 12, amount=-1))
    assert not caller.ingest()
    blocked = read_blocked(open_table(lab).properties, lab.stream)
    assert blocked is not None
    assert read_ids(lab) == list(range(12))
    caller.operate("waive", batch=blocked.plan.batch_id)
    assert caller.ingest()
    assert read_ids(lab) == list(range(14))


def _read_again(lab: Lab, caller: Caller) -> None:
    """Replay a range, and redrive a dead letter under a wider type."""
    caller.operate("replay", offsets=[f"{lab.topic}:0:0-4"])
    assert read_ids(lab) == list(range(14))
    lab.write_stream(value={"convert": "json", "columns": {**COLUMNS, "level": "long"}})
    lab.produce(make_values(2, 14))
    assert caller.ingest()  # the table follows its stream file
    caller.operate("replay_dead_letters")
    assert read_ids(lab) == [*range(16), 900]


def _erase_and_recover(lab: Lab, caller: Caller) -> None:
    """Erase a row and a dead letter of one key; roll a later batch back and read it again."""
    caller.operate("erase", keys=["id=3"])
    kept = [n for n in range(16) if n != 3]
    assert read_ids(lab) == [*kept, 900]
    lab.produce(make_values(4, 16))
    assert caller.ingest()
    caller.operate("recover", to_offset=f"{lab.topic}:0:{LAST_BATCH}")
    assert read_ids(lab) == [*kept, 900]
    assert caller.ingest()
    assert read_ids(lab) == [*kept, 16, 17, 18, 19, 900]


def _maintain(lab: Lab, data: Path | None) -> None:
    """Compact; then let days pass, expire snapshots and remove a file that nothing refers to."""
    before = read_ids(lab)
    compacted = run(lab, "maintain", "--only", "compact", "--rewrite-all", "--no-dry-run")
    assert compacted["compact"]["tables"][0]["rewritten"], compacted
    stray = _let_days_pass(lab, data)
    expired = run(lab, "maintain", "--only", "expire_snapshots", "--no-dry-run")
    assert expired["expire_snapshots"]["tables"][0]["expired_ids"], expired
    removed = run(lab, "maintain", "--only", "remove_orphans", "--no-dry-run")
    assert stray is None or not stray.exists(), removed
    assert read_ids(lab) == before


def _let_days_pass(lab: Lab, data: Path | None) -> Path | None:
    """Make the table and its files old; return a file among them that nothing refers to."""
    table = open_table(lab)
    content = json.loads(table.io.new_input(table.metadata_location).open().read())
    location = table.metadata_location.replace(".metadata.json", "-aged.metadata.json")
    with table.io.new_output(location).create() as file:
        file.write(json.dumps(set_back(content, DAYS)).encode())
    table.catalog.drop_table(lab.table)
    table.catalog.register_table(lab.table, location)
    if data is None:
        return None
    address = urlparse(table.location())
    inside = f"{address.netloc}/{address.path.strip('/')}"
    folder = Path(address.path) if address.scheme == "file" else data / inside
    stray = folder / "data" / "stray.parquet"
    stray.parent.mkdir(parents=True, exist_ok=True)
    stray.write_bytes(b"stray")
    then = time.time() - DAYS * 86_400
    for path in folder.rglob("*"):
        os.utime(path, (then, then))
    return stray


def open_table(lab: Lab) -> Table:
    """Load the table by PyIceberg, with the connection's settings."""
    preset = find_catalog("iceberg_default")
    return load_catalog(preset.name, **preset.properties).load_table(lab.table)


def read_ids(lab: Lab) -> list[int]:
    """List the ids of all rows that anybody can see."""
    return sorted(open_table(lab).scan(selected_fields=("id",)).to_arrow()["id"].to_pylist())


def _audit(lab: Lab) -> None:
    """Let the product's audits and the independent auditor judge the table."""
    run(lab, "audit", "--values")
    preset = find_catalog("iceberg_default")
    report = audit_table(preset.properties, preset.name, lab.table, lab.stack.bootstrap, lab.stream)
    assert not report.findings, report.findings
