"""PySpark's daemon of Python workers, which here ends when nobody has used it for a while.

Spark Connect starts one for each session, and it outlives the session (56 MB each). This one
stops once no worker is left; Spark starts another where it finds none. The Spark server names it
in `spark.python.daemon.module`.
"""

import os
import signal
import sys
from importlib.machinery import PathFinder
from types import FrameType

# Forked workers find these loaded: each would take half a second for them.
import pyarrow.compute
import pyarrow.json
import pyarrow.parquet  # noqa: F401

IDLE_SECONDS = 20.0
"""Spark itself ends a worker that was idle for a minute; only then this time begins."""

TICKS = 4


class IdleClock:
    """Count the ticks in which no worker is alive."""

    def __init__(self, limit: int) -> None:
        """Stop at so many ticks in a row."""
        self.limit = limit
        self._idle = 0

    def tick(self, _signal: int, _frame: FrameType | None) -> None:
        """Look for workers; end the daemon by its own way at the limit."""
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            self._idle = 0
        except ChildProcessError:
            self._idle += 1
        if self._idle >= self.limit:
            os.kill(os.getpid(), signal.SIGTERM)


def leave_archives() -> None:
    """Take PySpark from where it is installed, not from the archives that Spark puts before it.

    Each task reads the directories of all archives on its path anew (0.09 s, for
    `importlib.invalidate_caches`), and code in them is compiled at each start.
    """
    others = [entry for entry in sys.path if not entry.endswith((".zip", ".jar"))]
    if PathFinder.find_spec("pyspark", others) is not None:
        sys.path[:] = others
        sys.path_importer_cache.clear()


def main(idle_seconds: float = IDLE_SECONDS) -> None:
    """Run PySpark's daemon until Spark ends it or nobody has used it for so long."""
    signal.signal(signal.SIGALRM, IdleClock(TICKS).tick)
    signal.setitimer(signal.ITIMER_REAL, idle_seconds / TICKS, idle_seconds / TICKS)
    leave_archives()
    from pyspark import daemon  # noqa: PLC0415 - not from the archive

    daemon.manager()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
