"""A table in PostgreSQL and the state table of a stream: PyIceberg writes what a merge would."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

from support.postgres import Database
from support.state_lake import StateLake, make_state_lake

from frazil.state_tables.messages import MergeCounts, SourceCheck, SourceCheckRequest
from frazil.state_tables.source_check import verify_source
from frazil.workspace import Workspace

COUNTS = MergeCounts(changes=0, inserted=0, updated=0, deleted=0, absent=0, superseded=0, stale=0)
CONNECTION = "shop_db"
SENTINEL = 999
Row = dict[str, object]


@dataclass
class SourceLab:
    """Both sides; `columns` are those of the stream file, `names` those that PostgreSQL has."""

    database: Database
    lake: StateLake
    table: str
    columns: Mapping[str, str]
    told: list[str] = field(default_factory=list)
    offset: int = 0
    topic: str = "orders"

    @classmethod
    def make(
        cls, database: Database, folder: Path, name: str, columns: Mapping[str, str], **more: object
    ) -> "SourceLab":
        """Begin a stream of change events of a table; both have one name."""
        value = {"convert": "json", "transform": "flatten_debezium", "columns": {**columns}}
        whole = {"name": f"states.{name}", "mode": "upsert", "id_columns": ["id"], **more}
        sections = {"value": value, "order": "kafka", "table": whole}
        return cls(database, make_state_lake(StateLake, folder, name, **sections), name, columns)

    @property
    def work(self) -> Workspace:
        work = Workspace(self.lake.stream, self.lake.folder, "test")
        vars(work)["store"] = self.lake.store
        return work

    def read_source(self) -> list[Row]:
        """Read the source as its driver does, without the SQL that is tested."""
        names = ", ".join(f'"{name}"' for name in self.columns)
        found = self.database.ask(f"SELECT {names} FROM {self.table} ORDER BY id")  # noqa: S608
        return [
            {name: _plain(value) for name, value in zip(self.columns, values, strict=True)}
            for values in found
        ]

    def put(self, rows: Sequence[Row], **source: object) -> None:
        """Add rows to the state, as the merge of their events at the present LSN."""
        (lsn,) = self.database.ask("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn")[0]
        place = {"db": "postgres", "schema": "public", "table": self.table, "snapshot": "false"}
        given = {**place, "lsn": int(str(lsn)), **source}
        made = []
        for row in rows:
            kafka = {"topic": self.topic, "partition": 0, "offset": self.offset}
            made.append({**row, "_source": given, "_kafka": kafka})
            self.offset += 1
        self.lake.put_state(made, self.lake.position(COUNTS))

    def pass_by(self) -> None:
        """Let a change of another row reach the state: it has then passed what was read before."""
        self.database.ask(f"INSERT INTO {self.table} (id) VALUES ('{SENTINEL}')")  # noqa: S608
        key = str(SENTINEL) if self.columns["id"].startswith("string") else SENTINEL
        self.put([{name: key if name == "id" else None for name in self.columns}])

    def tell(self, text: str) -> None:
        """Note progress; while the check waits for the first time, let the state pass by."""
        self.told.append(text)
        if "waiting up to" in text and sum("waiting up to" in each for each in self.told) == 1:
            self.pass_by()

    def verify(self, wait: int = 30, table: str | None = None) -> SourceCheck:
        """Compare, and show keys."""
        request = SourceCheckRequest(
            stream=self.table, connection=CONNECTION, table=table, wait_seconds=wait
        )
        return verify_source(self.work, request, self.tell, shows_keys=True)


def _plain(value: object) -> object:
    if isinstance(value, memoryview):
        return bytes(value)
    return UUID(value).bytes if isinstance(value, str) and value.count("-") == 4 else value
