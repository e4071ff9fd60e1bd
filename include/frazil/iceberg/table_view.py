"""One load of a table: the state on which a step decides and which its commit requires."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from pyiceberg.table import Table

from frazil.iceberg.catalog import TableStore, missing_table
from frazil.iceberg.ledger_archive import make_absent_history, read_ledger, require_not_dropped
from frazil.ledger.recovery_point import History, RecoveryPoint, find_recovery_point


@dataclass(frozen=True)
class TableView:
    """A table as one load found it, with its ledger; the first use of a property loads it.

    A step opens one view, decides on it and passes it on. It opens another one for each further
    attempt of a commit, and after each commit of its own.
    """

    store: TableStore
    name: str

    @cached_property
    def found(self) -> Table | None:
        """Return the table; None if there was none.

        Raises:
            CatalogUnavailableError: the catalog did not answer.
        """
        return self.store.find(self.name)

    def load(self) -> None:
        """Load the table now, where it matters which of two tables is loaded first."""
        _ = self.found

    @property
    def table(self) -> Table:
        """Return the table.

        Raises:
            TableDroppedError, MissingTableError: there is no such table any more, or never was.
        """
        if self.found is None:
            require_not_dropped(self.store, self.name)
            raise missing_table(self.store, self.name)
        return self.found

    @cached_property
    def history(self) -> History:
        """Return the ledger in the table's snapshots; the archive is read only where they end."""
        return read_ledger(self.store, self.table, self.name)

    @cached_property
    def _points(self) -> dict[str, RecoveryPoint | None]:
        return {}

    def find_point(self, stream: str) -> RecoveryPoint | None:
        """Find a stream's recovery point, once; None if the stream is new.

        Raises:
            TableError: the table's ledger cannot be trusted.
        """
        if stream not in self._points:
            self._points[stream] = find_recovery_point(self.history, stream)
        return self._points[stream]

    def with_table(self, table: Table) -> "TableView":
        """Return a view of the table as a commit's response has it, without another load."""
        view = self.reload()
        vars(view)["found"] = table
        return view

    def as_absent(self) -> "TableView":
        """Return a view of a table that is not there, whose ledger is only the archive."""
        view = self.reload()
        vars(view).update(found=None, history=make_absent_history(self.store, self.name))
        return view

    def reload(self) -> "TableView":
        """Return a view that loads the table again."""
        return TableView(self.store, self.name)


def iterate_views(first: TableView) -> Iterator[TableView]:
    """Yield a view for each attempt of a commit: the given one, then freshly loaded ones."""
    yield first
    while True:
        yield first.reload()
