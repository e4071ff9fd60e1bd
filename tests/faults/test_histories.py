"""Two hundred short histories: whatever happens, every record is there once in the end."""

import os

import pytest
from support.lake import Lake

from faults.histories import History
from faults.imagined_kafka import find_faults
from frazil.workspace import Workspace

FIRST = int(os.environ.get("FRAZIL_FIRST_HISTORY", "1"))
HISTORIES = int(os.environ.get("FRAZIL_HISTORIES", "200"))
OF_OTHERS = {"E1", "E6"}
"""What the auditor rightly finds where others appended or rewrote rows by themselves."""


@pytest.mark.storm(20)
@pytest.mark.parametrize("seed", range(FIRST, FIRST + HISTORIES))
def test_a_history_ends_with_every_record_once(lake: Lake, work: Workspace, seed: int) -> None:
    history = History(seed, lake, work)

    history.unfold()

    told = "\n".join(history.told)
    expected = [(p, offset) for p, end in enumerate(history.ends) for offset in range(end)]
    assert lake.coordinates() == expected, told
    found = find_faults(lake, *history.ends)
    allowed = OF_OTHERS if history.has_meddled else set()
    assert {finding.invariant for finding in found} <= allowed, (found, told)
