"""A commit is tried again, with the table loaded again, after what may pass."""

from collections.abc import Callable, Iterator

import pytest
import stamina

from frazil.errors import StorageError
from frazil.iceberg.commit_retry import MAX_ATTEMPTS, retry_commit

ENDED_KEYS = "AWS Error ACCESS_DENIED during HeadObject operation: No response body."


@pytest.fixture(autouse=True)
def _fast() -> Iterator[None]:
    with stamina.set_testing(True, attempts=MAX_ATTEMPTS, cap=True):
        yield


def refuse(times: int) -> Callable[[], int]:
    """Refuse to read a file so many times; then return how often it was tried."""
    tried = 0

    def attempt() -> int:
        nonlocal tried
        tried += 1
        if tried <= times:
            raise OSError(ENDED_KEYS)
        return tried

    return attempt


def test_a_file_that_cannot_be_read_with_keys_that_ended_is_read_with_the_next_ones() -> None:
    assert retry_commit("publishing batch b", refuse(times=1)) == 2


def test_a_file_that_can_never_be_read_is_a_storage_error_that_says_what_was_done() -> None:
    with pytest.raises(StorageError, match="publishing batch b: ") as caught:
        retry_commit("publishing batch b", refuse(times=MAX_ATTEMPTS))

    assert "if the catalog issues the keys" in caught.value.next_step
