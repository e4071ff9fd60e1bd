"""The memory of one peer's processes while it runs."""

import contextlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import psutil
from throughput import list_family


@dataclass
class Peak:
    """The most memory that some processes held while something ran, sampled."""

    pids: Sequence[int]
    apart: Sequence[int] = ()
    """Processes that count for themselves, although they are children."""
    highest: int = 0
    told: float | None = None
    """What the action answered."""
    _over: threading.Event = field(default_factory=threading.Event)

    def watch(self, action: Callable[[], float | None]) -> None:
        """Run an action and look five times a second."""
        watcher = threading.Thread(target=self._look, daemon=True)
        watcher.start()
        try:
            self.told = action()
        finally:
            self._over.set()
            watcher.join()

    def _look(self) -> None:
        while not self._over.wait(0.2):
            rss = 0
            for pid in self.pids:
                with contextlib.suppress(psutil.NoSuchProcess):
                    rss += sum(p.memory_info().rss for p in list_family((pid,), self.apart))
            self.highest = max(self.highest, rss)
