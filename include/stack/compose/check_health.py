#!/usr/bin/env python3
"""Health check of a container: exit 0 if Airflow reports one of its components as healthy.

    check_health.py metadatabase|scheduler|dag_processor|triggerer

A request to the API server takes milliseconds; `airflow jobs check` loads all of Airflow.
"""

import json
import os
import sys
import urllib.request


def is_healthy(report: str, part: str) -> bool:
    """Return whether the JSON of `/api/v2/monitor/health` reports a component as healthy."""
    status = json.loads(report).get(part) or {}
    return bool(status.get("status") == "healthy")


def main() -> int:
    """Request the health report of the API server at `AIRFLOW_URL`."""
    url = os.environ.get("AIRFLOW_URL", "http://airflow-apiserver:8080")
    with urllib.request.urlopen(f"{url}/api/v2/monitor/health", timeout=8) as answer:  # noqa: S310
        report = answer.read().decode()
    print(report)  # noqa: T201 - shown by `docker inspect`
    return 0 if is_healthy(report, sys.argv[1]) else 1


if __name__ == "__main__":
    sys.exit(main())
