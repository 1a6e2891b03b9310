"""The machine's own clock, chance and ids."""

import asyncio
import os
import secrets
import time
import uuid
from collections.abc import Coroutine
from random import Random
from typing import Any, Final, TypeVar

T = TypeVar("T")

RANDOM_BITS_MASK: Final = ~(0xF << 76 | 0x3 << 62)
VERSION_4_BITS: Final = 0x4 << 76 | 0x2 << 62
"""The bits of a UUID that say how it was made."""


class RealWorld:
    def __init__(self) -> None:
        self.random = Random(secrets.randbits(128))

    # The functions themselves, as the limiter asks for the time six times a request.
    now_ns = staticmethod(time.time_ns)
    monotonic_s = staticmethod(time.monotonic)

    def new_id(self) -> str:
        # Random bits from our own generator are enough for an id, and many times cheaper than asking the kernel.
        # Put together by hand, a third of what the class of the standard library takes for it.
        text = f"{self.random.getrandbits(128) & RANDOM_BITS_MASK | VERSION_4_BITS:032x}"
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"

    def new_secret(self) -> str:
        return str(uuid.UUID(bytes=os.urandom(16), version=4))

    def token_bytes(self, count: int) -> bytes:
        return os.urandom(count)

    def start_task(self, coroutine: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        return asyncio.get_running_loop().create_task(coroutine, name=name)
