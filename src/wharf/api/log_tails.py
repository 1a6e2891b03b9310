"""Logs of allocations that are over, when their node is gone or keeps them no more: their ends, as servers keep them."""

import base64
from typing import Final

import msgspec

from wharf.api.answers import Done, Packed
from wharf.api.request import Request
from wharf.model.allocation import Allocation
from wharf.model.log_tails import unpack

KEPT: Final = "kept-by-servers"
"""The name of the file that is told: offsets in it count from where the kept part begins."""


class KeptFrame(msgspec.Struct, omit_defaults=True, rename={"offset": "Offset", "data": "Data", "file": "File"}):
    offset: int = 0
    data: str = ""
    file: str = ""


def kept_log(request: Request, allocation: Allocation) -> Done | None:
    """What the request asks, of what is kept; None where nothing is."""
    if not allocation.is_client_terminal:
        return None
    task, stream = request.text("task"), request.text("type")
    text = unpack(allocation.log_tails).get(task, {}).get(stream, b"")
    if not text:
        return None
    offset = request.number("offset")
    begin = max(0, len(text) - offset) if request.text("origin") == "end" else min(offset, len(text))
    data = text[begin:]
    if request.flag("plain"):
        return Done(Packed(data, "text/plain"))
    frame = KeptFrame(len(text), base64.b64encode(data).decode(), f"{KEPT}/{task}.{stream}")
    return Done(Packed(msgspec.json.encode(frame) if data else b"", "application/json"))
