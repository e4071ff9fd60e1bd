"""Run a command that ends when the process that started it ends.

    python -m frazil.spark.parent_guard COMMAND…

The starting process holds the other end of standard input. When that closes, because the process
ended or was killed, the command's whole process group is ended. This process leads the group.
"""

import os
import signal
import subprocess
import sys
import threading
import time

GRACE_SECONDS = 15.0


def main() -> None:
    """Run the command and exit with its code; SIGTERM is left to the command."""
    signal.signal(signal.SIGTERM, lambda *_: None)
    with subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL) as process:
        threading.Thread(target=end_with_parent, daemon=True).start()
        code = process.wait()
    sys.exit(code if code >= 0 else 128 - code)


def end_with_parent() -> None:
    """Wait until standard input closes, then end the group by SIGTERM and later by SIGKILL."""
    while os.read(0, 1):
        pass
    os.killpg(0, signal.SIGTERM)
    time.sleep(GRACE_SECONDS)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
