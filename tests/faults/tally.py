"""What a run of the catalogue counts, for its last lines: kills, and tables judged afterwards."""

import math
from collections import Counter

PROPERTY = "tally"

RECOVERED = "next run took s: "

counts: Counter[str] = Counter()
"""Of the test that runs; it travels to the report as a property of the test."""


def note_recovery(seconds: float) -> None:
    """Count a run that mended what a kill left, by the whole seconds that it took at most."""
    counts[f"{RECOVERED}{math.ceil(seconds)}"] += 1
