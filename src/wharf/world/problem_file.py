"""The problem of a node agent, in a file that the API processes of the same machine read for their health check."""

import contextlib
from pathlib import Path
from typing import Final

PROBLEM_FILE: Final = "problem"
MAX_PROBLEM_BYTES: Final = 1_000
"""Bytes of the file that are read; limits the reply of the health check."""


def store_problem(folder: Path, text: str) -> None:
    """Store the problem of the node whose state folder is `folder`; an empty text deletes it.

    Errors are ignored: the problem is also logged and sent to servers.
    """
    with contextlib.suppress(OSError):
        if text:
            (folder / PROBLEM_FILE).write_text(text)
        else:
            (folder / PROBLEM_FILE).unlink(missing_ok=True)


def read_problem(folder: Path) -> str:
    """Return the stored problem of a node; empty if there is none or it cannot be read."""
    with contextlib.suppress(OSError), (folder / PROBLEM_FILE).open("rb") as file:
        return file.read(MAX_PROBLEM_BYTES).decode(errors="replace").strip()
    return ""
