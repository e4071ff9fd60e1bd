"""Long texts of a snapshot's summary: zlib and base64, so that partitions do not bloat metadata."""

import base64
import zlib

PLAIN_LIMIT_BYTES = 4096
"""Above this a text is compressed (C15); below it people can read it in any tool."""

_COMPRESSED = "z:"


def pack(text: str) -> str:
    """Compress a text if it is long."""
    if len(text) <= PLAIN_LIMIT_BYTES:
        return text
    return _COMPRESSED + base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def unpack(text: str) -> str:
    """Give the text that was packed.

    Raises:
        ValueError, zlib.error: nothing that `pack` wrote.
    """
    if not text.startswith(_COMPRESSED):
        return text
    return zlib.decompress(base64.b64decode(text.removeprefix(_COMPRESSED))).decode()
