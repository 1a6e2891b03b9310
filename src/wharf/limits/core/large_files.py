"""How many objects a large-file batch asks for, read from its body."""

from typing import Final

import msgspec

MAX_BODY_BYTES: Final = 1 << 20


class UnreadableBatch(Exception):
    """A batch whose objects cannot be counted. Its text says why."""


class _Batch(msgspec.Struct):
    objects: list[msgspec.Raw] = []


_BATCH: Final = msgspec.json.Decoder(_Batch)


def count_objects(body: bytes) -> int:
    if len(body) > MAX_BODY_BYTES:
        raise UnreadableBatch(
            f"The batch is too long: of its bytes at most {MAX_BODY_BYTES} are read. Name fewer objects."
        )
    try:
        return len(_BATCH.decode(body).objects)
    except (msgspec.DecodeError, RecursionError) as problem:
        raise UnreadableBatch(f"The batch is not read: {problem}. Send JSON with a list `objects`.") from None
