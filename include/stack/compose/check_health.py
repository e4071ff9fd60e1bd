#!/usr/bin/env python3
"""Exit 0 if Airflow's health report calls one of its parts healthy; a container's health check.

    check_health.py metadatabase|scheduler|dag_processor|triggerer

Asking the API server costs some milliseconds; `airflow jobs check` would load all of Airflow.
"""

import json
import os
import sys
import urllib.request


def is_healthy(report: str, part: str) -> bool:
    """Read one part's status from the JSON of `/api/v2/monitor/health`."""
    status = json.loads(report).get(part) or {}
    return bool(status.get("status") == "healthy")


def main() -> int:
    """Ask the API server at `AIRFLOW_URL`."""
    url = os.environ.get("AIRFLOW_URL", "http://airflow-apiserver:8080")
    with urllib.request.urlopen(f"{url}/api/v2/monitor/health", timeout=8) as answer:  # noqa: S310
        report = answer.read().decode()
    print(report)  # noqa: T201 - `docker inspect` keeps it
    return 0 if is_healthy(report, sys.argv[1]) else 1


if __name__ == "__main__":
    sys.exit(main())
