"""Figures of `make matrix`: what its tests have counted, in sum."""

import os
from collections import Counter
from collections.abc import Iterable, Mapping

PROPERTY = "matrix"
"""The name under which a test records its counts."""

FIRST_SEED = int(os.environ.get("FRAZIL_FUZZ_SEED", "0"))
"""The seed of the first random records; `make matrix` chooses one, `make test` does not."""


def summarize(counts: Iterable[Mapping[str, int]]) -> list[str]:
    """Write the sum of each count on a line."""
    total = Counter[str]()
    for each in counts:
        total.update(each)
    return [f"{number:>9,} {name}" for name, number in sorted(total.items())]
