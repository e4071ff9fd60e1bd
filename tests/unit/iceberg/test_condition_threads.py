"""Threads that read tables by a condition at the same time, each for the first time."""

import subprocess
import sys

SCRIPT = """
from pyiceberg.expressions.parser import boolean_expression
print(boolean_expression.streamlined)
import frazil.iceberg.catalog
print(boolean_expression.streamlined)
"""


def test_no_thread_meets_a_parser_that_is_half_built() -> None:
    """Otherwise two first parses at once fail, in about one process of forty."""
    command = [sys.executable, "-c", SCRIPT]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)

    assert ended.stdout.split() == ["False", "True"]
