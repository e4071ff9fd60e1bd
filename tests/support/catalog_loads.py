"""How often tables are loaded from a catalog."""

from collections import Counter
from dataclasses import dataclass, field

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.update import TableRequirement, TableUpdate
from pyiceberg.typedef import Identifier


@dataclass
class Loads:
    """Loads of tables by name; what a catalog loads inside of its own commit is not counted."""

    by_table: Counter[str] = field(default_factory=Counter)
    is_paused: bool = False

    def take(self) -> dict[str, int]:
        """Return what was counted and start again at zero."""
        counted, self.by_table = dict(self.by_table), Counter()
        return counted


def count_loads(monkeypatch: pytest.MonkeyPatch, catalog: type[SqlCatalog]) -> Loads:
    """Count the loads of all catalogs of a class, until the test ends."""
    counted = Loads()
    load, commit = catalog.load_table, catalog.commit_table

    def load_table(self: SqlCatalog, identifier: str | Identifier) -> Table:
        if not counted.is_paused:
            counted.by_table[".".join(Catalog.identifier_to_tuple(identifier))] += 1
        return load(self, identifier)

    def commit_table(
        self: SqlCatalog,
        table: Table,
        requirements: tuple[TableRequirement, ...],
        updates: tuple[TableUpdate, ...],
    ) -> CommitTableResponse:
        counted.is_paused = True
        try:
            return commit(self, table, requirements, updates)
        finally:
            counted.is_paused = False

    monkeypatch.setattr(catalog, "load_table", load_table)
    monkeypatch.setattr(catalog, "commit_table", commit_table)
    return counted
