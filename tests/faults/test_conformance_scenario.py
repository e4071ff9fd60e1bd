"""The cheapest cell of `make conformance`: its scenario on the embedded stack, and its search."""

import os

import pytest
from conformance.callers import CommandLine
from conformance.cells import BYSTANDERS, encode
from conformance.planted import Search
from conformance.scenario import play, write_stream
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

    write_stream(lab)
    lab.create_topic()
    search = Search()
    with search.watch_processes():
        play(lab, lab.stack.home, CommandLine(lab))
    search.read_files(lab.stack.home)
    search.read_files(lab.folder)

    assert search.found == set()
