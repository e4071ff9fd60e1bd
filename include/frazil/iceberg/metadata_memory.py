"""Metadata files that were read, remembered: a name with a UUID in it is never used twice.

A step loads its table again and again, since what it decides must fit what stands there now. Where
that is, the catalog says each time; what it says is parsed once.
"""

import re
import threading
from collections import OrderedDict
from collections.abc import Callable

from pyiceberg.io import InputFile
from pyiceberg.serializers import FromInputFile
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import UTF8

KEPT = 4
"""Metadata of so many tables: a watch over a fleet looks at each but once."""


_UNIQUE = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}[^/]*\.metadata\.json$")
"""As all of Iceberg's catalogs name them; a table of a Hadoop folder has `v7.metadata.json`."""


class MetadataMemory:
    """Read metadata files as PyIceberg does, and each that was read lately no second time."""

    def __init__(self, read: Callable[[InputFile, str], TableMetadata]) -> None:
        """Keep how a file is read."""
        self._read = read
        self._known: OrderedDict[str, TableMetadata] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(self, input_file: InputFile, encoding: str = UTF8) -> TableMetadata:
        """Give what a file says; nobody changes it, as PyIceberg copies before it updates."""
        if not _UNIQUE.search(input_file.location):
            return self._read(input_file, encoding)
        with self._lock:
            if input_file.location in self._known:
                self._known.move_to_end(input_file.location)
                return self._known[input_file.location]
        found = self._read(input_file, encoding)
        with self._lock:
            self._known[input_file.location] = found
            while len(self._known) > KEPT:
                self._known.popitem(last=False)
        return found


def remember_metadata() -> None:
    """Let PyIceberg's catalogs of files (SQL, Hive, Glue) remember; a REST catalog sends it all."""
    read = FromInputFile.table_metadata
    if not isinstance(read, MetadataMemory):
        FromInputFile.table_metadata = staticmethod(MetadataMemory(read))  # type: ignore[method-assign]
