"""A real SQLite catalog whose answers to commits a test may script.

Every commit goes to PyIceberg's own `SqlCatalog`; the script only decides whether it gets there
before, after or without the answer that the caller sees, as a network between them would.

    catalog.script = [landed_then(ServerError("502")), honest]
"""

from collections.abc import Callable

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.update import TableRequirement, TableUpdate
from pyiceberg.typedef import Identifier

Land = Callable[[], CommitTableResponse]
Answer = Callable[[Land], CommitTableResponse]


class ScriptedCatalog(SqlCatalog):
    """Answer commits by `script`, first entry first, and honestly once it is used up."""

    def __init__(self, name: str, **properties: str) -> None:
        """Open the real catalog with an empty script."""
        super().__init__(name, **properties)
        self.script: list[Answer] = []
        self.lost_reads: list[Exception] = []
        self.commits_asked = 0

    def load_table(self, identifier: str | Identifier) -> Table:
        """Load the table, unless the next read is to be lost."""
        if self.lost_reads:
            raise self.lost_reads.pop(0)
        return super().load_table(identifier)

    def commit_table(
        self,
        table: Table,
        requirements: tuple[TableRequirement, ...],
        updates: tuple[TableUpdate, ...],
    ) -> CommitTableResponse:
        """Commit as the script says; what others commit inside of an answer is not scripted."""
        self.commits_asked += 1
        answer = self.script.pop(0) if self.script else honest
        land = super().commit_table
        rest, self.script = self.script, []
        try:
            return answer(lambda: land(table, requirements, updates))
        finally:
            self.script = rest


def honest(land: Land) -> CommitTableResponse:
    """Commit and say so."""
    return land()


def landed_then(error: BaseException) -> Answer:
    """Commit, and lose the answer."""

    def answer(land: Land) -> CommitTableResponse:
        land()
        raise error

    return answer


def refused(error: BaseException) -> Answer:
    """Do not commit, and say this."""

    def answer(_: Land) -> CommitTableResponse:
        raise error

    return answer


def overtaken_by(*events: Callable[[], object]) -> Answer:
    """Let others act between the caller's look at the table and its commit."""

    def answer(land: Land) -> CommitTableResponse:
        for event in events:
            event()
        return land()

    return answer


def ignored(table: Table) -> Answer:
    """Answer with success and unchanged metadata, as some catalogs do when asked for a branch."""

    def answer(_: Land) -> CommitTableResponse:
        location = {"metadata-location": table.metadata_location}
        return CommitTableResponse.model_validate({"metadata": table.metadata, **location})

    return answer
