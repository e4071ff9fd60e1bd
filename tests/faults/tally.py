"""What a run of the catalogue counts, for its last lines: kills, and tables judged afterwards."""

from collections import Counter

PROPERTY = "tally"

counts: Counter[str] = Counter()
"""Of the test that runs; it travels to the report as a property of the test."""
