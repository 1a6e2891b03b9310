"""Counts the objects of a large-file batch from its request body."""

from typing import Final

import msgspec

from wharf.limits.core.json_members import AmbiguousMember, check_members

MAX_BODY_BYTES: Final = 1 << 20
"""Longer bodies are rejected before they are parsed."""


class UnreadableBatch(Exception):
    """The objects of a batch cannot be counted. The text gives the reason and is sent to the caller."""


class _Batch(msgspec.Struct):
    """The body of a Git LFS batch request. Its objects are counted and not decoded."""

    objects: list[msgspec.Raw] = []


_BATCH: Final = msgspec.json.Decoder(_Batch)


def count_objects(body: bytes) -> int:
    """Return the number of objects in the body of a large-file batch.

    Raises `UnreadableBatch` if the body is too long or not a JSON object with a list `objects`, or if services can read its objects
    in different ways.
    """
    if len(body) > MAX_BODY_BYTES:
        raise UnreadableBatch(f"The batch is longer than {MAX_BODY_BYTES} bytes. Send fewer objects at a time.")
    try:
        count = len(_BATCH.decode(body).objects)
        check_members(body, ("objects",))
    except AmbiguousMember as problem:
        raise UnreadableBatch(f"The batch cannot be read: {problem} Send one list `objects`.") from None
    except (msgspec.DecodeError, RecursionError) as problem:
        raise UnreadableBatch(f"The batch cannot be read: {problem}. Send JSON with a list `objects`.") from None
    return count
