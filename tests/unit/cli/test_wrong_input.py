"""No command ends with a traceback, or without a next step, whatever is typed."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.stream_files import GOOD

from frazil_cli.main import COMMANDS, main

ARGUMENTS: dict[str, tuple[str, ...]] = {
    "where": ("--partition", "0", "--offset", "1"),
    "waive": ("--batch", "0" * 32),
    "recover": ("--to-snapshot", "1"),
    "erase": ("--key", "id=1"),
    "compare": ("orders",),
    "verify-source": ("--connection", "shop_db"),
    "replay": ("--offsets", "orders:0:0-1"),
    "backfill": ("--offsets", "orders:0:0-1"),
    "replay-dead-letters": ("--offsets", "orders:0:0-1"),
}
"""What a command needs besides its stream."""
NO_STREAM = {"doctor", "streams", "cost", "drill", "timeline"}
RANGED = ("replay", "backfill", "replay-dead-letters")
Call = Callable[..., tuple[object, str]]


@pytest.fixture
def call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Call:
    """Return a function that runs the command line where no service runs."""
    streams = tmp_path / "streams"
    streams.mkdir()
    (streams / "orders.yaml").write_text(GOOD)
    (streams / "broken.yaml").write_text("stream: [")
    catalog = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/c.db",
        "warehouse": f"file://{tmp_path}",
    }
    monkeypatch.setenv("FRAZIL_STREAMS", str(streams))
    monkeypatch.setenv("FRAZIL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("AIRFLOW_CONN_ICEBERG_DEFAULT", json.dumps({"extra": catalog}))
    kafka = {"extra": {"bootstrap.servers": "127.0.0.1:1"}}
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps(kafka))
    monkeypatch.setattr("frazil.kafka.cluster.TIMEOUT_SECONDS", 0.2)

    def run(*words: str) -> tuple[object, str]:
        monkeypatch.setattr(sys, "argv", ["frazil", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        told = capsys.readouterr()
        return ended.value.code, told.out + told.err

    return run


def find_faults(code: object, told: str) -> list[str]:
    """List what a refusal lacks: words instead of a traceback, and a next step or the usage."""
    unwanted = [each for each in ("Traceback", "Aborted", "Unexpected") if each in told]
    wanted = {1: "Next:", 2: "Usage:"}.get(code, "a code of refusal")  # type: ignore[call-overload]
    return [*unwanted, *([] if wanted in told else [f"no {wanted}, code {code}: {told}"])]


def words_of(command: str, stream: str) -> list[str]:
    named = () if command in NO_STREAM else (stream,)
    return [command, *named, *ARGUMENTS.get(command, ())]


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_an_unknown_option_is_a_usage_error(call: Call, command: str) -> None:
    code, told = call(*words_of(command, "orders"), "--no-such-option")

    assert find_faults(code, told) == []
    assert code == 2


@pytest.mark.parametrize("stream", ["nope", "broken", "../etc/passwd", "", "ä\n"])
@pytest.mark.parametrize("command", sorted(COMMANDS.keys() - NO_STREAM))
def test_a_wrong_stream_is_named(call: Call, command: str, stream: str) -> None:
    assert find_faults(*call(*words_of(command, stream))) == []


@pytest.mark.parametrize(
    "wrong",
    ["orders", "orders:0", "orders:0:5-5", "orders:0:9-3", "orders:x:0-1", "[0, 1)", "", ","],
)
@pytest.mark.parametrize("command", RANGED)
def test_a_wrong_range_is_refused(call: Call, command: str, wrong: str) -> None:
    code, told = call(command, "orders", "--offsets", wrong)

    assert find_faults(code, told) == []


@pytest.mark.parametrize("command", ["erase", "recover", "where", "waive", "compare"])
def test_a_wrong_value_is_refused(call: Call, command: str) -> None:
    wrong = {
        "erase": ("--key", "no-equals-sign"),
        "recover": ("--to-offset", "orders"),
        "where": ("--partition", "-1", "--offset", "x"),
        "waive": ("--batch", "not an id"),
        "compare": ("nope.nope.nope",),
    }

    assert find_faults(*call(command, "orders", *wrong[command])) == []


@pytest.mark.parametrize("sides", [("orders", "nowhere"), ("nowhere", "orders")])
def test_a_side_that_is_no_stream_may_be_a_table(call: Call, sides: tuple[str, str]) -> None:
    code, told = call("compare", *sides)

    told = " ".join(told.split())
    assert code == 1
    assert "nowhere.yaml; a table that no stream fills is named with its namespace" in told
    assert "NAMESPACE.nowhere" in told


def test_a_missing_file_of_keys_is_refused(call: Call) -> None:
    assert find_faults(*call("erase", "orders", "--keys-file", "/no/such/file")) == []


@pytest.mark.parametrize(
    "command", ["plan", "run", "snapshots", "audit", "dead-letters", "maintain"]
)
def test_a_home_that_cannot_be_written_is_no_traceback(
    call: Call, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("FRAZIL_HOME", "/proc/none")

    code, told = call(command, "orders")

    if code != 0:  # a preview of a table that does not exist yet needs no home
        assert find_faults(code, told) == []
    assert "Traceback" not in told


@pytest.mark.parametrize(
    "words",
    [
        ("timeline", "--since", "yesterday"),
        ("timeline", "--stream", "nope"),
        ("drill", "nope", "--like", "orders"),
        ("drill", "nope", "--like", "nope"),
        ("cost", "nope"),
        ("cost", "--prices", "/no/such/file"),
        ("status", "nope"),
        ("replay", "orders", "--since", "yesterday"),
        ("backfill", "orders", "--until", "2026"),
        ("compare", "orders", "a..b"),
        ("compare", "orders", "."),
        ("compare", "demo.\udcff", "orders"),
        ("verify-source", "orders", "--connection", "shop_db"),
        ("recover", "orders", "--to-time", "yesterday"),
        ("move-cluster", "orders", "--next", "orders"),
        ("adopt", "orders", "--columns", "x"),
        ("stack", "nope"),
        ("nope",),
    ],
    ids=" ".join,
)
def test_other_wrong_words_are_refused(call: Call, words: tuple[str, ...]) -> None:
    assert find_faults(*call(*words)) == []
