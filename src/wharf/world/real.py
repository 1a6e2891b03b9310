"""The machine's own clock, chance and ids."""

import asyncio
import os
import secrets
import time
import uuid
from collections.abc import Coroutine
from random import Random
from typing import Any, TypeVar

T = TypeVar("T")


class RealWorld:
    def __init__(self) -> None:
        self.random = Random(secrets.randbits(128))

    def now_ns(self) -> int:
        return time.time_ns()

    def monotonic_s(self) -> float:
        return time.monotonic()

    def new_id(self) -> str:
        # Random bits from our own generator are enough for an id, and many times cheaper than asking the kernel.
        return str(uuid.UUID(int=self.random.getrandbits(128), version=4))

    def new_secret(self) -> str:
        return str(uuid.UUID(bytes=os.urandom(16), version=4))

    def token_bytes(self, count: int) -> bytes:
        return os.urandom(count)

    def start(self, work: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        return asyncio.get_running_loop().create_task(work, name=name)
