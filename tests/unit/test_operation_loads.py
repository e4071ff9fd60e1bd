"""How often each operation on a table loads it: once, and once more after what changes it."""

from collections.abc import Callable, Iterator, Mapping

import pytest
from support.lake import Lake, Molds
from support.operated_lake import (
    LEDGER,
    LEGACY,
    LETTERS,
    STREAM,
    TABLE,
    Site,
    adopt,
    clean,
    compact,
    erase_keys,
    expire,
    expire_old,
    lose,
    open_site,
    redrive,
    roll_back,
)

from frazil.ledger import keys
from frazil.workspace import Workspace


@pytest.fixture
def lake(molds: Molds) -> Iterator[Lake]:
    with molds.begin(STREAM) as lake:
        yield lake


@pytest.fixture
def site(lake: Lake, molds: Molds, work: Workspace, monkeypatch: pytest.MonkeyPatch) -> Site:
    return open_site(lake, molds, work, monkeypatch)


WRITTEN = 1
"""An operation loads a table again after a commit of its own, or after Spark has written."""
OTHERS = {LEDGER: 1, keys.TIMELINE_TABLE: 1}
"""Maintenance looks at the shared tables too; there is no timeline here."""
OPERATIONS: Mapping[Callable[[Site], None], Mapping[str, Mapping[str, int]]] = {
    compact: {"do": {TABLE: 1 + WRITTEN, LETTERS: 1 + WRITTEN, **OTHERS, LEDGER: 1 + WRITTEN}},
    # The archive has all entries, or it would be loaded to append them, and to read them back.
    expire: {"do": {TABLE: 1 + WRITTEN, LETTERS: 1 + WRITTEN, **OTHERS}},
    # Files that are published while Spark lists the folder are in use.
    clean: {"do": {TABLE: 1 + WRITTEN, LETTERS: 1, **OTHERS}},
    expire_old: {"do": {TABLE: 1 + WRITTEN, LEDGER: 1}},
    # Dead letters are searched in each of two attempts, the last of which finds none: a batch
    # publishes its dead letters before its rows. Then they are deleted until none is left.
    erase_keys: {
        "plan": {TABLE: 1, LETTERS: 1},
        "do": {TABLE: 1 + WRITTEN, LETTERS: 2 + 1 + WRITTEN, LEDGER: 1},
    },
    # The archive is read before, so that nothing is lost with the abandoned snapshots.
    roll_back: {"plan": {TABLE: 1}, "do": {TABLE: 1 + WRITTEN, LEDGER: 2}},
    redrive: {"do": {TABLE: 1 + WRITTEN + WRITTEN, LETTERS: 1, LEDGER: 1}},
    # A preview looks for another writer's commit once more; an adoption's own commit shows it.
    # The archive tells whether the stream was here before.
    adopt: {"plan": {LEGACY: 2, LEDGER: 1}, "do": {LEGACY: 1 + WRITTEN, LEDGER: 2}},
    lose: {"do": {TABLE: 1 + WRITTEN, LEDGER: 1}},
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_operation_loads_a_quiet_table_once_and_again_after_what_changes_it(
    site: Site, operation: Callable[[Site], None]
) -> None:
    operation(site)
    site.note("do")

    assert site.noted == OPERATIONS[operation]
