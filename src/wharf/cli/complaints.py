"""What servers say is wrong with what they were sent, taken apart: one complaint for each thing, without the frame round it.

A complaint is shown as servers say it; only lists, lists in lists and counts are undone.
"""

import re
from typing import Final, NamedTuple

_WITH_PLACE_FIRST: Final = re.compile(r"Job((?:\.\w+|\[\d+\])*): (.*)")
_ITEM: Final = re.compile(r"\n\s*\* ")
_COUNT: Final = re.compile(r"\b\d+ errors? occurred:$")
_WITH_PLACE_LAST: Final = re.compile(r"(.*) \(([A-Z]\w*(?:\[\d+\]|\.\w+)*)\)(: .*)?")


class Complaint(NamedTuple):
    """`place`: where, as `TaskGroups[0].Count`; `Job` for a whole job, nothing where nobody told."""

    place: str
    said: str


def complaints_in(text: str) -> list[Complaint]:
    """They are said as `Job.Place: what; Job.Place: what`, or as a list of `what (Place)` in which there are lists."""
    found: list[Complaint] = []
    for piece in _ITEM.split(text.strip()):
        one = " ".join(piece.split())
        if _COUNT.search(one):
            continue  # Only how many follow.
        if listed := _WITH_PLACE_LAST.fullmatch(one):
            found.append(Complaint(listed[2], listed[1] + (listed[3] or "")))
            continue
        for part in re.split(r"; (?=Job\.)", one):
            named = _WITH_PLACE_FIRST.fullmatch(part)
            found.append(Complaint(named[1].lstrip(".") or "Job", named[2]) if named else Complaint("", part))
    return found


def in_one_list(text: str) -> str:
    """What is told in lists, one line for each thing; anything else as one line."""
    if _ITEM.search(text) is None:
        return " ".join(text.split())
    return "\n".join(f"{one.place}: {one.said}" if one.place else one.said for one in complaints_in(text))
