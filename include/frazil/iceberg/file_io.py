"""PyIceberg's access to the files of the warehouse, with a counter."""

import logging
from collections.abc import Mapping

from pyarrow.fs import FileSelector
from pyiceberg.io import InputFile, OutputFile
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from frazil.ledger.usage import count_request

# PyIceberg logs at INFO for each table that it uses this class, which fills a task's log.
logging.getLogger("pyiceberg.io").setLevel(logging.WARNING)


class CountedFileIO(PyArrowFileIO):
    """File access by PyArrow that counts each file opened, written or deleted."""

    def new_input(self, location: str) -> PyArrowFile:
        """Return a file to read."""
        count_request("files")
        return super().new_input(location)

    def new_output(self, location: str) -> PyArrowFile:
        """Return a file to write."""
        count_request("files")
        return super().new_output(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Delete a file."""
        count_request("files")
        super().delete(location)


def ask_for_reason(properties: Mapping[str, str], folder: str) -> OSError | None:
    """Return why an S3 storage refuses a folder; None if it lists it.

    The answer to PyArrow's first request for a file, HEAD, has no text; that to a listing has one.
    """
    io = PyArrowFileIO(dict(properties))
    scheme, bucket, path = io.parse_location(folder)
    try:
        io.fs_by_scheme(scheme, bucket).get_file_info(FileSelector(path, allow_not_found=True))
    except OSError as error:
        return error
    return None
