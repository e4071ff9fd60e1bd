"""The watch over all streams in one task: most are sound, and a task for each would only say so.

With a hundred streams a task of their own each minute was a fifth of all that Airflow did.
"""

import logging
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait

from frazil.observability.watch import watch_stream
from frazil.workspace import open_workspace
from frazil_airflow.dag_runs import is_paused
from frazil_airflow.metrics import send_gauges
from frazil_airflow.outcomes import choose_log_level

AT_ONCE = 4
"""Looks wait for Kafka and the catalog most of their time."""

LOOK_SECONDS = 120.0
"""For all streams together: where one hangs, the others' failures must not wait for it."""

ENOUGH = 2
"""So many streams found the same part down: it is the part, not one of its topics or tables."""

log = logging.getLogger(__name__)


def find_failing(streams: Sequence[str], run_id: str) -> list[str]:
    """Look at each stream and say in the log how it is; name those that need a task of their own.

    These are the ones that fail: too late, broken, with a part that does not answer, or not seen in
    time. Where broker or catalog did not answer, the streams that use it too are named without
    another wait.
    """
    down: Counter[str] = Counter()
    pool = ThreadPoolExecutor(AT_ONCE)
    looks = {stream: pool.submit(_is_sound, stream, run_id, down) for stream in streams}
    done, _ = wait(looks.values(), LOOK_SECONDS)
    pool.shutdown(wait=False, cancel_futures=True)
    unseen = [stream for stream, look in looks.items() if look not in done]
    if unseen:
        log.warning("not seen within %d s: %s", LOOK_SECONDS, ", ".join(unseen))
    failing = [stream for stream, look in looks.items() if look not in done or not look.result()]
    log.info("%d of %d streams fail", len(failing), len(streams))
    return failing


def _is_sound(stream: str, run_id: str, down: Counter[str]) -> bool:
    """Look at one stream; whatever goes wrong is its own, and shown by the task that it gets."""
    try:
        work = open_workspace(stream, run_id)
        source, table = work.stream.source.connection, work.stream.table.connection
        parts = {"kafka_down": f"broker of {source}", "catalog_down": f"catalog of {table}"}
        if any(down[part] >= ENOUGH for part in parts.values()):
            return False
        report = watch_stream(work)
        if report.level == "warn" and is_paused(f"ingest__{stream}"):
            report = watch_stream(work, is_paused=True)
        send_gauges(report)
    except Exception as error:  # noqa: BLE001 - it must not hide the other streams
        log.warning("%s: %s", stream, error)
        return False
    log.log(choose_log_level(report), "%s", report.text)
    down.update([parts[report.cause]] if report.cause in parts else [])
    return report.level != "fail"
