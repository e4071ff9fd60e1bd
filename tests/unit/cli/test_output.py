"""Standard output is the answer alone: programs read it as JSON."""

import subprocess
import sys

import pytest

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


def test_ranges_in_a_table_keep_their_brackets(capsys: pytest.CaptureFixture[str]) -> None:
    print_table("Ranges", ("read",), [(format_ranges({"orders": {0: (0, 5)}}),)])

    assert "orders:0:0-5 " in capsys.readouterr().out
