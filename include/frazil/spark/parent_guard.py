"""Run a command for as long as somebody waits for it.

    python -m frazil.spark.parent_guard COMMAND…

Whoever waits holds the other end of standard input. When that closes, because the waiting process
ended or was killed, the command's whole process group ends too. This process is the group's leader.
"""

import os
import signal
import subprocess
import sys
import threading
import time

GRACE_SECONDS = 15.0


def main() -> None:
    """Run the command line's words and end with their exit code; a SIGTERM is theirs to answer."""
    signal.signal(signal.SIGTERM, lambda *_: None)
    with subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL) as process:
        threading.Thread(target=end_when_alone, daemon=True).start()
        code = process.wait()
    sys.exit(code if code >= 0 else 128 - code)


def end_when_alone() -> None:
    """Wait until nobody holds the other end, then ask the group to end, and kill what stays."""
    while os.read(0, 1):
        pass
    os.killpg(0, signal.SIGTERM)
    time.sleep(GRACE_SECONDS)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
