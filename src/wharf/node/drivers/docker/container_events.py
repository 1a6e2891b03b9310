"""Events of the container engine: one stream for all containers wakes whoever waits for a change of one of them.

An event is only a hint. Its receiver asks the engine for the state of the container.
"""

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from typing import Final

from wharf.node.drivers.docker.engine import ContainerEngine
from wharf.node.drivers.docker.errors import EngineRejected, EngineUnreachable
from wharf.world import World
from wharf.world.tasks import start_supervised

log = logging.getLogger(__name__)

END_ACTIONS: Final = frozenset(("die", "died", "cleanup", "stop", "remove", "destroy"))
"""Actions after which a container may have ended. Docker and Podman use different names."""
CHECK_INTERVAL_S: Final = 60.0
"""Seconds after which a container is checked without an event, in case one was lost."""
CHECK_INTERVAL_WITHOUT_EVENTS_S: Final = 5.0
"""The same while the engine sends no events. A check costs an engine about 3 ms of CPU time."""
RETRY_DELAY_S: Final = 1.0
"""Seconds before a stream of events that ended is opened again."""
REJECTED_RETRY_DELAY_S: Final = 60.0
"""The same if the engine rejects the request, for example because its configuration disables events."""


class ContainerEvents:
    """Listens to the events of one engine while anything waits for a container."""

    def __init__(self, world: World, engine: ContainerEngine) -> None:
        self._world = world
        self._engine = engine
        self._waiters: dict[str, set[asyncio.Event]] = {}
        """The flags to set after an event, by container id."""
        self._listening: asyncio.Task[None] | None = None
        self._is_open = False

    @property
    def check_interval_s(self) -> float:
        """The longest time to wait for an event before a container is checked."""
        return CHECK_INTERVAL_S if self._is_open else CHECK_INTERVAL_WITHOUT_EVENTS_S

    @contextlib.contextmanager
    def subscribe(self, container: str) -> Iterator[asyncio.Event]:
        """Return a flag that is set when the container may have ended, or when events may have been lost."""
        flag = asyncio.Event()
        self._waiters.setdefault(container, set()).add(flag)
        if self._listening is None:
            self._listening = start_supervised(
                self._world, self._listen(), name="container events", on_failure=self._on_listening_failed
            )
        try:
            yield flag
        finally:
            self._waiters[container].discard(flag)
            if not self._waiters[container]:
                del self._waiters[container]
            if not self._waiters and self._listening is not None:
                self._listening.cancel()
                self._listening, self._is_open = None, False

    def _on_listening_failed(self, _: Exception) -> None:
        """Let the next subscriber listen again; until then, containers are checked at intervals."""
        self._listening, self._is_open = None, False

    async def _listen(self) -> None:
        """Receive events and wake the waiters of their containers. Runs until canceled."""
        last_error = ""
        while True:
            delay_s = RETRY_DELAY_S
            try:
                async with self._engine.open_events() as events:
                    self._is_open = True
                    self._wake_all()  # What happened before is not in the stream.
                    async for event in events:
                        if event.action in END_ACTIONS:
                            self._wake(event.actor.id)
                last_error = ""
            except EngineRejected as error:
                delay_s = REJECTED_RETRY_DELAY_S
                if str(error) != last_error:
                    last_error = str(error)
                    log.warning("container engine sends no events; checking containers at intervals error=%s", error)
            except EngineUnreachable:
                pass  # The driver's health shows it.
            self._is_open = False
            self._wake_all()
            await asyncio.sleep(delay_s)

    def _wake(self, container: str) -> None:
        """Set the flags of those that wait for this container."""
        for flag in self._waiters.get(container, ()):
            flag.set()

    def _wake_all(self) -> None:
        """Set the flags of all waiters."""
        for container in self._waiters:
            self._wake(container)
