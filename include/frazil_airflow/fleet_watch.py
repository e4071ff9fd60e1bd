"""The watch over all streams in one task: most are sound, and a task for each would only say so.

With a hundred streams a task of their own each minute was a fifth of all that Airflow did.
"""

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from frazil.watch import watch_stream
from frazil.workspace import open_workspace
from frazil_airflow.following import is_paused
from frazil_airflow.metrics import send_gauges
from frazil_airflow.outcomes import choose_log_level

AT_ONCE = 4
"""Looks wait for Kafka and the catalog most of their time."""

log = logging.getLogger(__name__)


def find_failing(streams: Sequence[str], run_id: str) -> list[str]:
    """Look at each stream and say in the log how it is; name those that need a task of their own.

    These are the ones that fail: too late, broken, or with a broker, catalog or registry that does
    not answer. Where one did not, the streams that use it too are named without another wait.
    """
    down: set[str] = set()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        is_sound = [*pool.map(lambda stream: _is_sound(stream, run_id, down), streams)]
    failing = [stream for stream, sound in zip(streams, is_sound, strict=True) if not sound]
    log.info("%d of %d streams fail", len(failing), len(streams))
    return failing


def _is_sound(stream: str, run_id: str, down: set[str]) -> bool:
    """Look at one stream; whatever goes wrong is its own, and shown by the task that it gets."""
    try:
        work = open_workspace(stream, run_id)
        kafka, catalog = work.stream.source.connection, work.stream.table.connection
        if {f"kafka_down {kafka}", f"catalog_down {catalog}"} & down:
            return False
        report = watch_stream(work)
        if report.level == "warn" and is_paused(f"ingest__{stream}"):
            report = watch_stream(work, is_paused=True)
    except Exception as error:  # noqa: BLE001 - it must not hide the other streams
        log.warning("%s: %s", stream, error)
        return False
    send_gauges(report)
    log.log(choose_log_level(report), "%s", report.text)
    down.update(f"{report.cause} {connection}" for connection in (kafka, catalog))
    return report.level != "fail"
