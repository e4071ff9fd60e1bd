"""What `make demo-cdc` does: a table of PostgreSQL becomes a state table; again: nothing new."""

import shutil
import subprocess
import sys

import pytest
from conftest import Lab
from support.postgres import MISSING, PROGRAMS

from frazil_stack.database import choose_folder

pytestmark = [pytest.mark.stack, pytest.mark.skipif(not PROGRAMS, reason=MISSING)]


def run_demo(lab: Lab) -> str:
    """Run the demonstration in the stack's home; give what it says."""
    done = subprocess.run(
        [sys.executable, "-m", "frazil_demo.cdc"],
        env=lab.environment(COLUMNS="200"),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.long
def test_the_demo_merges_every_kind_of_change_and_a_second_one_finds_nothing_new(lab: Lab) -> None:
    try:
        first, second = run_demo(lab), run_demo(lab)
    finally:
        shutil.rmtree(choose_folder(lab.stack.home / "cdc"), ignore_errors=True)

    for told in (first, second):
        assert "different" not in told
        assert "3 source rows, 3 in the state; 3 equal" in told
        assert "row last changed by shop.public.customers:0:" in told
        assert "deleted by shop.public.customers:0:" in told
        for row in (("2", "Ben", "ben@example.org", "19.99"), ("30", "Cleo"), ("4", "Dan")):
            lines = [line for line in told.splitlines() if all(part in line for part in row)]
            assert len(lines) >= 2, (row, told)
    assert "key change: UPDATE customers SET id = 30 WHERE id = 3" in first
    assert "the changes were made by an earlier run" in second
    assert "published" not in second
