"""A state table whose rows have ages: changes of the past, merged without Spark."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import time_machine
from faults.state_auditor import Fold, StateRules, audit_state_table
from support.lake import append
from support.log_lake import LogInMemory
from support.state_lake import Change, StateLake

from frazil.ledger.keys import EVENT_TIME
from frazil.maintenance.messages import RowExpiryReport
from frazil.maintenance.row_expiry import expire_rows
from frazil.observability.audit import audit_table
from frazil.state_tables.merge_rules import DELETED_AT
from frazil.state_tables.messages import MergeCounts
from frazil.workspace import Workspace

NOW = datetime.now(UTC).replace(hour=12)
COUNTS = MergeCounts(changes=0, inserted=0, updated=0, deleted=0, absent=0, superseded=0, stale=0)
SECTIONS = {
    "kafka": {
        "order": "kafka",
        "value": {"columns": {"id": "long!", "op": "string", "at": "long", "name": "string"}},
    },
    "sequence": {},
}
KEEP = {"changes": {"keep_days": 30}}
EXPIRE = {"maintenance": {"expire_rows": {"column": "_kafka.timestamp", "keep_days": 60}}}


@dataclass(frozen=True)
class Dated(StateLake):
    """Each record is so many days old as its sequence says."""

    @staticmethod
    def make_row(change: Change, place: dict[str, object]) -> dict[str, object]:
        row = StateLake.make_row(change, place)
        return {**row, "_kafka": {**place, "timestamp": NOW - timedelta(days=100 - change.at)}}

    def publish_at(self, days_ago: int, *parts: tuple[Change, ...]) -> None:
        """Publish changes of the partitions so many days ago."""
        with time_machine.travel(NOW - timedelta(days=days_ago)):
            for number, changes in enumerate(parts):
                self.produce(number, *changes)
            self.ingest_all()

    def merge(self) -> None:
        """Write the state and its delete memory as a merge of all changes does."""
        fold = Fold(self.rules, self.table.scan().to_arrow().to_pylist())
        rows, deletes = [], []
        for _, winner in fold.winners():
            place = {name: winner["_kafka"][name] for name in ("topic", "partition", "offset")}
            is_delete = fold.is_delete(winner)
            if is_delete and not self.rules.marks:
                order = self._order_of(winner)
                deletes.append({"id": winner["id"], **order, "_kafka": place, "memory": "m"})
            else:
                at = winner["_kafka"]["timestamp"] if is_delete else None
                mark = {DELETED_AT: at} if self.rules.marks else {}
                rows.append({n: value for n, value in winner.items() if n != "op"} | mark)
        self.put_state(rows, self.position(COUNTS))
        if deletes:
            append(self.catalog, self.store.load(f"{self.state_name}__deletes"), deletes)

    def _order_of(self, change: Mapping[str, Any]) -> dict[str, object]:
        """Return what the delete memory holds of the order of a change."""
        values = {**change, EVENT_TIME: change["_kafka"]["timestamp"]}
        sequence = {f"s{n}": values[name] for n, name in enumerate(self.stream.sequence)}
        return {"_sequence": sequence} if sequence else {}

    @property
    def rules(self) -> StateRules:
        table = self.stream.table
        marks = table.deletes == "mark"
        return StateRules("orders", self.state_name, ("id",), self.stream.sequence, "op", marks)

    def find_wrong(self) -> list[object]:
        """Let all audits look."""
        log = LogInMemory()
        for number, changes in enumerate(self.log):
            log.produce(number, *range(len(changes)))
        return [
            *audit_table(self.store, self.stream, log).findings,
            *audit_state_table(self.catalog, self.rules),
        ]

    def expire(self, run_id: str = "run", *, dry_run: bool = False) -> RowExpiryReport:
        work = Workspace(self.stream, self.folder, run_id)
        vars(work)["store"] = self.store
        return expire_rows(work, dry_run=dry_run)

    def changes_left(self) -> list[tuple[int, int]]:
        return self.coordinates()

    def deletes_left(self) -> list[int]:
        memory = self.store.load(f"{self.state_name}__deletes").scan().to_arrow().to_pylist()
        return sorted(row["id"] for row in memory)
