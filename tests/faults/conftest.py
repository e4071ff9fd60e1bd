"""Fixtures of the failure catalogue, and its report: one line for each case."""

import pytest
from conftest import Lab

from faults.batches import Batches


@pytest.fixture
def batches(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Batches:
    """Run a lab's batches in this process, where each step can be stopped and looked at."""
    monkeypatch.setenv("FRAZIL_HOME", str(lab.stack.home))
    monkeypatch.setenv("FRAZIL_STREAMS", str(lab.folder))
    return Batches(lab)
