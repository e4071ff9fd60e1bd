"""Files of the warehouse as PyIceberg reads and writes them, counted."""

import logging

from pyiceberg.io import InputFile, OutputFile
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from frazil.ledger.usage import count_request

# For each table it opens, PyIceberg says at INFO that it found this class: a task's log fills.
logging.getLogger("pyiceberg.io").setLevel(logging.WARNING)


class CountedFileIO(PyArrowFileIO):
    """PyIceberg's file access by PyArrow; each file opened, written or deleted counts once."""

    def new_input(self, location: str) -> PyArrowFile:
        """Open a file."""
        count_request("files")
        return super().new_input(location)

    def new_output(self, location: str) -> PyArrowFile:
        """Write a file."""
        count_request("files")
        return super().new_output(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Delete a file."""
        count_request("files")
        super().delete(location)
