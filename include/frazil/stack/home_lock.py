"""One `up` or `down` at a time per home."""

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

Say = Callable[[str], None]
"""Takes one line of progress for a person."""


@contextmanager
def lock_home(stack: Path, say: Say) -> Iterator[None]:
    """Wait for another `frazil stack` command on this home, then hold it."""
    with (stack / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("stack: waiting for another `frazil stack` command in this home")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
