"""Standard output is the answer alone: programs read it as JSON."""

import subprocess
import sys

import pytest
from rich.console import Console

from frazil_cli.output import format_ranges, print_table

RETRY = """
import stamina
{silence}
for attempt in stamina.retry_context(on=ValueError, attempts=2, wait_initial=0.01):
    with attempt:
        if attempt.num == 1:
            raise ValueError("once")
print("{{}}")
"""


def run(silence: str) -> str:
    program = RETRY.format(silence=silence)
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout


def test_a_retry_is_not_written_into_the_answer() -> None:
    silence = "from frazil_cli.output import silence_retry_logs\nsilence_retry_logs()"

    assert run(silence) == "{}\n"
    assert run("") != "{}\n", "by default a retry is told there"


@pytest.mark.parametrize("width", [20, 80, 200])
def test_what_is_copied_into_a_command_is_on_one_line_of_a_narrow_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], width: int
) -> None:
    narrow = Console(highlight=False, soft_wrap=True, width=width)
    monkeypatch.setattr("frazil_cli.output.console", narrow)
    columns = ("snapshot", "kind", "epoch", "offsets", "rows", "committed (UTC)", "decision")
    ranges = {"shop.public.customer_orders_v2": {0: (0, 1_000_000), 11: (4_711_471, 47_114_711)}}
    decision = "to snapshot 1, jane@example.org: a bad release, approved by joe"
    offsets = format_ranges(ranges)
    row = (8423897423897423897, "rewind", 12, offsets, 1_000_000, "x" * 19, decision)

    print_table("Snapshots", columns, [row])

    printed = capsys.readouterr().out
    words = " ".join(map(str, (*columns, *row))).split()
    assert [word for word in words if word not in printed.split()] == []


def test_ranges_in_a_table_keep_their_brackets(capsys: pytest.CaptureFixture[str]) -> None:
    print_table("Ranges", ("read",), [(format_ranges({"orders": {0: (0, 5)}}),)])

    assert "orders:0:0-5 " in capsys.readouterr().out
