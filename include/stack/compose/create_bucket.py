#!/usr/bin/env python3
"""Create a bucket unless it exists: `create_bucket.py NAME`, keys and endpoint from `AWS_*`."""

import os
import sys

from pyarrow.fs import S3FileSystem  # type: ignore[import-untyped]


def create_bucket(name: str) -> None:
    """Create the bucket unless it exists."""
    store = S3FileSystem(
        endpoint_override=os.environ["AWS_ENDPOINT_URL"],
        region=os.environ["AWS_REGION"],
        allow_bucket_creation=True,
    )
    store.create_dir(name)


if __name__ == "__main__":
    create_bucket(sys.argv[1])
