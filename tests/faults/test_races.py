"""Two processes, one table: one wins, the other says so, nothing is doubled (A7, B1, B5, F1, F2).

A one-at-a-time refusal proves nothing for SQL catalogs, where the client checks; only races count.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from conftest import Lab, Stack, good_values
from faults.racing import (
    ROWS,
    Order,
    Racer,
    connections,
    judge_good,
    open_race,
    plan_rows,
    race,
    stage_rows,
    start_racers,
    take_account,
)
from faults.rest_catalog import CATALOG_NAME, run_rest_catalog
