"""Answers that are kept with their tag, so that asking again for what has not changed costs nothing."""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, NamedTuple

KEPT_MAX_BYTES: Final = 16 << 20
ANSWER_MAX_BYTES: Final = 1 << 20


class Kept(NamedTuple):
    tag: str
    status: int
    headers: Sequence[tuple[bytes, bytes]]
    body: bytes  # As it came over the wire, so that the headers stay true.


class Key(NamedTuple):
    account: str
    url: str
    # Headers that change what is answered.
    varies: tuple[str, ...]


class Tags:
    """The answers used last, up to a number of bytes."""

    def __init__(self, kept_max_bytes: int = KEPT_MAX_BYTES) -> None:
        self._kept: OrderedDict[Key, Kept] = OrderedDict()
        self._left = kept_max_bytes
        self._lock = threading.Lock()

    def find(self, key: Key) -> Kept | None:
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def keep(self, key: Key, kept: Kept) -> None:
        if len(kept.body) > ANSWER_MAX_BYTES:
            return
        with self._lock:
            old = self._kept.pop(key, None)
            self._left += len(old.body) if old else 0
            self._kept[key] = kept
            self._left -= len(kept.body)
            while self._left < 0:
                _, oldest = self._kept.popitem(last=False)
                self._left += len(oldest.body)
