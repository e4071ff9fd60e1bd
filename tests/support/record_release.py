"""Record what a release leaves behind: a catalog, messages between tasks, and waiting triggers.

`tests/unit/releases/0.1.tar.gz` was recorded at commit 0204679, the last one of 0.1.0.

Run it in a checkout of the release, with that release's tests on the path:

    git worktree add ../release TAG
    cd ../release && PYTHONPATH=include:spark_jobs:tests python …/record_release.py 0.1.tar.gz
"""

import json
import sqlite3
import sys
import tarfile
import tempfile
from contextlib import closing
from pathlib import Path

import fastavro
from support.lake import Lake, load_with_history, make_stream, passed

from frazil.connections.clients import CatalogPreset
from frazil.iceberg import commits
from frazil.iceberg.catalog import TableStore
from frazil.iceberg.commit_retry import commit_once
from frazil.iceberg.ledger_archive import archive_new_entries
from frazil.ingest.blocked_batches import BlockedBatch, encode_blocked
from frazil.ingest.messages import BatchPlan, NothingToRead, Published
from frazil.ingest.pipeline import describe_published
from frazil.ledger.authors import Author
from frazil.maintenance.messages import ErasurePlan
from frazil.messages import Message
from frazil.migration.messages import MovedPartition, MovePlan, MoveRequest
from frazil.recovery.decisions import waive_batch
from frazil.recovery.messages import (
    BackfillPlan,
    DeadLetterChoice,
    Differences,
    RecoverRequest,
    RecoveryPlan,
    ReplayPlan,
    Window,
)
from frazil.workspace import Workspace
from frazil_airflow.record_trigger import NewRecordsTrigger

PLACE = "/release"
"""Stands for the folder of a recorded catalog in its paths."""
SECTIONS: dict[str, object] = {
    "source": {"topic": "orders", "start": "earliest"},
    "value": {"convert": "json", "columns": {"id": "long!", "name": "string"}},
    "table": {"name": "demo.orders"},
    "errors": {"max_bad_ratio": 0.5},
    "quality": {"on_failure": "warn"},
}


class PlainLake(Lake):
    """A lake with PyIceberg's own catalog, as a connection would open it."""

    @property
    def store(self) -> TableStore:
        """Open the catalog."""
        properties = {
            "type": "sql",
            "uri": f"sqlite:///{self.folder}/catalog.db",
            "warehouse": f"file://{self.folder}/warehouse",
        }
        return TableStore(CatalogPreset("lake", properties))


def record_messages(plan: BatchPlan, published: Published) -> list[Message]:
    """Make one of each message that a task of a DAG passes to the next one."""
    request = RecoverRequest(
        stream="orders", to_snapshot=7, by="jane", reason="bad release", dry_run=False
    )
    window = Window(stream="orders", number=1, count=1, ranges=plan.ranges)
    moved = MovedPartition(topic="orders", partition=0, old_next=3, new_next=4, evidence="records")
    move = MoveRequest(stream="orders", by="jane", reason="new cluster", dry_run=False)
    common = {"stream": "orders", "table": "demo.orders"}
    return [
        NothingToRead(**common, epoch=2, next_offsets=plan.next_offsets),
        published,
        RecoveryPlan(**common, request=request, head=9, target_id=7, rows_going=4, text="4 rows"),
        ReplayPlan(
            **common, dry_run=False, batch=plan, differences=Differences(rows_now=4), text="4 rows"
        ),
        BackfillPlan(**common, dry_run=False, windows=(window,), filled=0, left=0, text="1 window"),
        DeadLetterChoice(stream="orders", reasons=("malformed_json",), dry_run=False),
        MovePlan(**common, request=move, partitions=(moved,), text="moved"),
        ErasurePlan(
            **common, by="jane", reason="request", dry_run=False, rows=1, letters=0, text="1 row"
        ),
    ]


def record(folder: Path) -> None:
    """Fill a folder with a stream that has two batches and a staged one, and a blocked stream."""
    lake = PlainLake(folder, make_stream("orders", **SECTIONS))
    lake.begin()
    lake.ingest(3, 2)
    first = lake.plan(5, 4)
    published = describe_published(first, lake.publish(first, lake.stage(first)))
    archive_new_entries(lake.store, load_with_history(lake.store, "demo.orders")[1])
    plan = lake.plan(7, 6)
    staged = lake.stage(plan)
    steps = {"plan": plan, "staged": staged, "verdict": passed(plan, staged)}
    for name, message in steps.items():
        (folder / f"{name}.json").write_text(message.encode())
    messages = {type(each).__name__: each for each in record_messages(plan, published)}
    content = {name: json.loads(each.encode()) for name, each in messages.items()}
    (folder / "messages.json").write_text(json.dumps(content, indent=1))
    (folder / "trigger.json").write_text(json.dumps(NewRecordsTrigger("orders").serialize()))

    stream = make_stream("returns", **{**SECTIONS, "table": {"name": "demo.returns"}})
    other = PlainLake(folder, stream)
    other.begin()
    blocked = BlockedBatch(
        plan=other.plan(3, 2),
        error="QualityFailed",
        failures=("2 of 5 values are missing",),
        branch="frazil_returns_0_x",
        blocked_at="2026-11-25T00:00:00+00:00",
    )
    table = other.store.load("demo.returns")
    commit_once(other.store, table, {}, [commits.set_properties(encode_blocked(blocked))])
    work = Workspace(stream, folder, "recorded")
    vars(work)["store"] = other.store
    waive_batch(work, blocked.plan.batch_id, Author("jane", "a known gap"))
    for each in (lake.stream, stream):
        text = each.model_dump_json(by_alias=True, exclude_defaults=True)
        (folder / f"{each.stream}.json").write_text(text)
    hashes = {each.stream: each.content_hash for each in (lake.stream, stream)}
    (folder / "hashes.json").write_text(json.dumps(hashes))
    relocate(folder, str(folder), PLACE)


def relocate(folder: Path, old: str, new: str) -> None:
    """Change the paths in a catalog and in the metadata of its tables."""
    for path in folder.rglob("*.metadata.json"):
        path.write_text(path.read_text().replace(old, new))
    for path in folder.rglob("*.avro"):
        with path.open("rb") as file:
            reader = fastavro.reader(file)
            records = [_replace(record, old, new) for record in reader]
        kept = {k: v for k, v in reader.metadata.items() if not k.startswith("avro.")}
        with path.open("wb") as file:
            fastavro.writer(file, reader.writer_schema, records, "deflate", metadata=kept)
    with closing(sqlite3.connect(folder / "catalog.db")) as database, database:
        for column in ("metadata_location", "previous_metadata_location"):
            replaced = f"UPDATE iceberg_tables SET {column} = replace({column}, ?, ?)"  # noqa: S608
            database.execute(replaced, (old, new))


def _replace(value: object, old: str, new: str) -> object:
    match value:
        case str():
            return value.replace(old, new)
        case dict():
            return {key: _replace(each, old, new) for key, each in value.items()}
        case list():
            return [_replace(each, old, new) for each in value]
    return value


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        record(Path(place))
        with tarfile.open(sys.argv[1], "w:gz") as archive:
            archive.add(place, ".")
