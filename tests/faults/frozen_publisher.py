"""A publisher that freezes (SIGSTOP) between its look at the table and its commit.

Standard input: one JSON object with `folder`, `stream`, `plan` and `staged`. Whoever started it
wakes it with SIGCONT; then it prints how its publish ended.
"""

import json
import os
import signal
import sys
from pathlib import Path

from support.lake import Lake
from support.scripted_catalog import overtaken_by

from frazil.errors import FrazilError
from frazil.ingest.messages import BatchPlan, Staged
from frazil.streams.models import Stream


def main() -> None:
    """Publish, and freeze once on the way."""
    given = json.load(sys.stdin)
    lake = Lake(Path(given["folder"]), Stream.model_validate(given["stream"]))
    plan, staged = (
        BatchPlan.model_validate(given["plan"]),
        Staged.model_validate(given["staged"]),
    )
    lake.catalog.script = [overtaken_by(lambda: os.kill(os.getpid(), signal.SIGSTOP))]
    try:
        landed = lake.publish(plan, staged)
    except FrazilError as error:
        sys.stdout.write(error.code)
    else:
        sys.stdout.write("ALREADY" if landed.already_published else "PUBLISHED")


if __name__ == "__main__":
    main()
