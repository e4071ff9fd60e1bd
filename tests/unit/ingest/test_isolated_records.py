"""Records that are hard to find, and what is kept of those that are found."""

from pathlib import Path

import pytest
from support.failing_jobs import IllegalArgumentException, PythonException, Run, begin_run
from support.lake import Lake


@pytest.fixture
def run(lake: Lake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Give a stream whose job fails at named records."""
    return begin_run(lake, monkeypatch, tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "ValueError: row of Jane Doe BUSY street",
        "java.lang.IllegalStateException: Jane Doe No space left on device",
        "ValueError: AccessDenied Jane Doe",
        "(java.lang.IllegalArgumentException) Invalid UUID string: Jane Doe",
    ],
)
def test_a_record_with_the_words_of_an_outage_is_found(run: Run, text: str) -> None:
    kind = IllegalArgumentException if "UUID" in text else PythonException
    run.engine.failing = {(0, 7): kind(text)}

    run.publish()

    run.require_exact((0, 7))
