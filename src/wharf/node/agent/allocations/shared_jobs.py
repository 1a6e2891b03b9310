"""Lets allocations of the same job share equal parts of it in memory.

Servers send the job of an allocation again in each reply, and each dispatch of a parameterized job makes a new job. Without sharing,
400 dispatches of a large job would need 400 times its memory.
"""

import hashlib
from collections import OrderedDict
from typing import Any, Final

import msgspec
from msgspec.structs import force_setattr

from wharf.contract.model.jobs.job import Job

SHARED_FIELDS: Final = ("task_groups", "meta", "constraints", "affinities", "spreads", "payload")
"""The fields of a job that can be large."""
MIN_SHARED_BYTES: Final = 1_024
"""The encoded size from which a value is shared; searching for smaller ones costs more than it saves."""
MAX_FINDABLE_BYTES: Final = 64 << 20
"""How many encoded bytes of values can be found again; limits the memory for jobs that no allocation has any more."""


class SharedJobParts:
    """Finds an equal value for the large fields of a job among those of recent jobs."""

    def __init__(self) -> None:
        self._values: OrderedDict[bytes, tuple[Any, int]] = OrderedDict()
        """Value and encoded size by digest; the one that was used last is at the end."""
        self._bytes = 0
        self._last_job: Job | None = None

    def share(self, job: Job | None) -> None:
        """Replace the large fields of a job by equal values of earlier jobs.

        The job was just decoded, so its fields can be set in place. Several assignments of one reply may have the same
        job.
        """
        if job is None or job is self._last_job:
            return
        self._last_job = job
        for name in SHARED_FIELDS:
            value = getattr(job, name)
            # Encoded values are compared: in Python 1, 1.0 and True are equal, but a driver gets what the job says.
            if value is None or len(encoded := _encode(value)) < MIN_SHARED_BYTES:
                continue
            digest = hashlib.sha256(name.encode() + b"\0" + encoded).digest()
            found = self._values.get(digest)
            if found is None:
                self._add(digest, value, len(encoded))
            else:
                self._values.move_to_end(digest)
                force_setattr(job, name, found[0])

    def _add(self, digest: bytes, value: Any, size: int) -> None:
        """Let later jobs find a value, and forget the values that were used longest ago."""
        self._values[digest] = value, size
        self._bytes += size
        while self._bytes > MAX_FINDABLE_BYTES:
            _, (_, dropped_size) = self._values.popitem(last=False)
            self._bytes -= dropped_size


_encode: Final = msgspec.msgpack.Encoder().encode
