"""The limits of offsets in files and logs of allocations, which servers and nodes check."""

from typing import Final

from wharf.contract.model.refusal import invalid_request

MAX_FILE_OFFSET: Final = 2**62
"""No file is larger. Above it, the operating system rejects reads with an error of its own."""


def check_file_offset(offset: int) -> None:
    """Raise `Refusal` if the offset in a file or log is negative, or larger than any file."""
    if offset < 0:
        raise invalid_request("offset cannot be negative")
    if offset > MAX_FILE_OFFSET:
        raise invalid_request(f"offset {offset} is larger than any file: the limit is {MAX_FILE_OFFSET}")
