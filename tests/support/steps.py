"""Count what a call does, where a test of its time must not depend on the machine."""

import sys
from collections.abc import Callable
from types import FrameType


def count_steps(call: Callable[[], object]) -> int:
    """Return how many bytecode instructions of `frazil` a call executes."""
    found = 0

    def trace(frame: FrameType, event: str, _: object) -> "Callable[..., object] | None":
        nonlocal found
        if not str(frame.f_globals.get("__name__")).startswith("frazil"):
            return None
        frame.f_trace_opcodes = True
        found += event == "opcode"
        return trace

    earlier = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(earlier)
    return found
