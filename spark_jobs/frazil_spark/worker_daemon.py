"""PySpark's daemon of Python workers, with an end after an idle time.

Spark Connect starts a daemon for each session, and PySpark's own outlives the session (56 MB each).
This one stops once it has no workers; Spark starts another when it needs one. The Spark server
names it in `spark.python.daemon.module`.
"""

import os
import signal
import sys
from importlib.machinery import PathFinder
from types import FrameType

# Loaded before the fork: each worker would need half a second to import them.
import pyarrow.compute
import pyarrow.json
import pyarrow.parquet  # noqa: F401

IDLE_SECONDS = 20.0
"""Begins when the last worker ended; Spark ends a worker that was idle for a minute."""

TICKS = 4


class IdleClock:
    """Count consecutive ticks without a live worker."""

    def __init__(self, limit: int) -> None:
        """Set the number of ticks at which the daemon stops."""
        self.limit = limit
        self._idle = 0

    def tick(self, _signal: int, _frame: FrameType | None) -> None:
        """Check for workers; at the limit stop the daemon by its own signal."""
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            self._idle = 0
        except ChildProcessError:
            self._idle += 1
        if self._idle >= self.limit:
            os.kill(os.getpid(), signal.SIGTERM)


def import_outside_archives() -> None:
    """Import PySpark from its installation, not from the archives that Spark puts on the path.

    Each task would read the directories of all archives on its path again (0.09 s, for
    `importlib.invalidate_caches`), and compile the code in them at each start.
    """
    others = [entry for entry in sys.path if not entry.endswith((".zip", ".jar"))]
    if PathFinder.find_spec("pyspark", others) is not None:
        sys.path[:] = others
        sys.path_importer_cache.clear()


def main(idle_seconds: float = IDLE_SECONDS) -> None:
    """Run PySpark's daemon until Spark ends it or it was idle for `idle_seconds`."""
    signal.signal(signal.SIGALRM, IdleClock(TICKS).tick)
    signal.setitimer(signal.ITIMER_REAL, idle_seconds / TICKS, idle_seconds / TICKS)
    import_outside_archives()
    from pyspark import daemon  # noqa: PLC0415 - not from the archive

    daemon.manager()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
