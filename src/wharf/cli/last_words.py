"""The last line that a task printed: as a rule it says why the task ended. Its node has it, or else servers do."""

from typing import TYPE_CHECKING, Final

from wharf.cli.speaking import Talk

if TYPE_CHECKING:
    from wharf.model.allocation import AllocationStub

LINE_BYTES: Final = 1_024
SHOWN_MAX: Final = 200


def last_line(talk: Talk, one: "AllocationStub", task: str) -> str:
    """Of its errors, or else of the rest. Empty where there is none, or nobody tells it."""
    from wharf.client import Unreachable
    from wharf.model.refusal import Refusal

    for stream in ("stderr", "stdout"):
        asked = talk.client.files.logs(
            one.id, task, type=stream, origin="end", offset=LINE_BYTES, namespace=one.namespace
        )
        try:
            lines = b"".join(asked).decode(errors="replace").split("\n")
        except (Refusal, Unreachable):
            continue
        if found := next((line for line in map(printable, reversed(lines)) if line), ""):
            return found[-SHOWN_MAX:]
    return ""


def printable(line: str) -> str:
    """Nothing in it moves a terminal's hand."""
    return "".join(sign for sign in line if sign.isprintable()).strip()
