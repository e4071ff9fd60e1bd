"""The cheapest cell of `make conformance`: its scenario on the embedded stack, and its search."""

import os

import pytest
from conformance.cells import BYSTANDERS, encode
from conformance.planted import find_in_files, watch_processes
from conformance.scenario import play
from conftest import Lab

pytestmark = pytest.mark.stack


@pytest.mark.core
def test_the_scenario_passes_on_the_embedded_stack_and_leaves_no_secret(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FRAZIL_HOME", str(lab.stack.home))
    monkeypatch.setenv("FRAZIL_STREAMS", str(lab.folder))
    for name, value in encode(BYSTANDERS).items():
        monkeypatch.setenv(name, value)
    assert any("planted-" in value for value in os.environ.values())

    with watch_processes() as seen:
        play(lab, lab.stack.home)

    assert seen | find_in_files(lab.stack.home) | find_in_files(lab.folder) == set()
