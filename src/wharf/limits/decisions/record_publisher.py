"""Publishes decisions and changes by operators as records for sinks and followers, and writes the audit file.

Decisions wait in a queue, so that no request waits until its record is encoded.
"""

import asyncio
import logging
import os
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from wharf.limits.core.callers.caller import Caller
from wharf.limits.decisions.decision_log import LoggedDecision, append_private
from wharf.limits.decisions.records import AUDIT_TYPE, DECISION_TYPE, build_change_record, build_decision_record
from wharf.sinks.build import build_source
from wharf.sinks.records import encode_record
from wharf.sinks.stream import RecordStream
from wharf.world import World
from wharf.world.tasks import cancel_tasks

log = logging.getLogger(__name__)

AUDIT_FILE: Final = "audit.jsonl"
"""The file with the changes by operators, in the data folder."""
PUBLISH_INTERVAL_S: Final = 0.25
"""How long a decision may wait before sinks and followers get it."""
DECISIONS_PER_STEP: Final = 64
"""Decisions that are encoded at once, which takes about 2 ms; between two steps the event loop can serve requests."""
MAX_UNPUBLISHED_DECISIONS: Final = 20_000
"""Decisions that wait to be encoded for sinks and followers; more are dropped and counted."""


class RecordPublisher:
    """The records of one process: queues its decisions, and passes them and the changes to sinks and followers.

    `render_entry` returns a decision as the decision log has it, and `find_resource` the resource of an organization that a
    request is about. With `folder` as `None`, no audit file is written.
    """

    def __init__(
        self,
        folder: Path | None,
        world: World,
        *,
        render_entry: Callable[[LoggedDecision], dict[str, Any]],
        find_resource: Callable[[str, str, Caller], str],
    ) -> None:
        self.stream = RecordStream()
        """The sinks and followers of the records."""
        self.source: Final = build_source(f"limits-{os.getpid()}")
        self.dropped = 0
        """Decisions that sinks and followers did not get because too many waited."""
        self.waiting: Final[deque[LoggedDecision]] = deque()
        """Decisions that are not published yet."""
        self._folder = folder
        self._world = world
        self._render_entry = render_entry
        self._find_resource = find_resource
        self._task: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Start to publish queued decisions."""
        self._task = self._world.start_task(self._run_loop(), name="limits: publish decisions")

    async def close(self) -> None:
        """Publish the queued decisions, and close the stream."""
        task, self._task = self._task, None
        if task is not None:
            await cancel_tasks(task)
        await self.publish_queued()
        await self.stream.close()

    def write_audit_entry(self, action: str, *, by: str, **facts: object) -> None:
        """Record an operator's action or the expiry of one, in the process log and in the audit file."""
        entry = {
            "at_ms": self._world.now_ns() // 1_000_000,
            "act": action,
            "by": by,
            **facts,
            "id": self._world.new_id(),
        }
        log.warning("limits changed", extra={"action": action, "by": by, **facts})
        if self._folder is not None:
            try:
                append_private(self._folder / AUDIT_FILE, msgspec.json.encode(entry) + b"\n")
            except OSError as error:  # The action is done already, and the process log has it.
                log.error("audit entry of the limiter not written action=%s error=%s", action, error)
        record = build_change_record(entry, source=self.source)
        self.stream.publish(AUDIT_TYPE, record.id, encode_record(record))

    def queue_decision(self, logged: LoggedDecision) -> None:
        """Queue a decision for sinks and followers, if any gets decisions. If too many wait, it is dropped and counted."""
        if not self.stream.wants(DECISION_TYPE):
            return
        if len(self.waiting) >= MAX_UNPUBLISHED_DECISIONS:
            self.dropped += 1
            return
        self.waiting.append(logged)

    async def _run_loop(self) -> None:
        """Publish the queued decisions several times a second, until the task is cancelled."""
        while True:
            await asyncio.sleep(PUBLISH_INTERVAL_S)
            await self.publish_queued()

    async def publish_queued(self) -> None:
        """Encode the queued decisions and pass them to sinks and followers. Requests are served in between."""
        while self.waiting:
            for _ in range(min(len(self.waiting), DECISIONS_PER_STEP)):
                logged = self.waiting.popleft()
                record = build_decision_record(
                    self._render_entry(logged),
                    list(logged.decision.list_limits()),
                    resource=self._find_resource(logged.method, logged.path, logged.caller),
                    source=self.source,
                )
                self.stream.publish(DECISION_TYPE, record.id, encode_record(record))
            await asyncio.sleep(0)
