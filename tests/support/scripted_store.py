"""A real folder whose writes a test may let fail in the middle, as those of an object store do.

Every file goes to PyIceberg's own `PyArrowFileIO`. A failing write leaves the first half of what it
was given behind and raises what the script says:

    ScriptedStore.failures = [None, OSError("503 Slow Down")]  # the first file is written
"""

from types import TracebackType
from typing import ClassVar

from pyiceberg.io import FileIO, InputFile, OutputFile, OutputStream
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.typedef import Properties


class ScriptedStore(FileIO):
    """Write by `failures`, first entry first, and honestly once it is used up."""

    failures: ClassVar[list[OSError | None]] = []

    def __init__(self, properties: Properties) -> None:
        """Open the real store."""
        super().__init__(properties)
        self._real = PyArrowFileIO(properties)

    def new_input(self, location: str) -> InputFile:
        """Read as ever."""
        return self._real.new_input(location)

    def new_output(self, location: str) -> OutputFile:
        """Return a file to write, which fails if that is its turn."""
        real = self._real.new_output(location)
        failure = self.failures.pop(0) if self.failures else None
        return real if failure is None else TornFile(real, failure)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Delete as ever."""
        self._real.delete(location)


class TornFile(OutputFile):
    """A file that is written by half."""

    def __init__(self, real: OutputFile, failure: OSError) -> None:
        """Keep the real file and the error."""
        super().__init__(real.location)
        self._real, self._failure = real, failure

    def __len__(self) -> int:
        """Return the length of what is there."""
        return len(self._real)

    def exists(self) -> bool:
        """Return whether anything is there."""
        return self._real.exists()

    def to_input_file(self) -> InputFile:
        """Read what is there."""
        return self._real.to_input_file()

    def create(self, overwrite: bool = False) -> OutputStream:  # noqa: FBT001, FBT002 - PyIceberg's
        """Open the stream that breaks."""
        return TornStream(self._real.create(overwrite), self._failure)


class TornStream(OutputStream):
    """A stream that breaks in its first write."""

    def __init__(self, real: OutputStream, failure: OSError) -> None:
        """Keep the real stream and the error."""
        self._real, self._failure = real, failure

    def write(self, b: bytes) -> int:
        """Write half, then fail."""
        self._real.write(b[: len(b) // 2])
        self.close()
        raise self._failure

    def close(self) -> None:
        """Close what was begun."""
        self._real.close()

    def tell(self) -> int:
        """Say how far it came."""
        return self._real.tell()

    def __enter__(self) -> OutputStream:
        """Begin, as a stream does."""
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End, as a stream does."""
        self.close()
