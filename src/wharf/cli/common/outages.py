"""Commands that follow something repeat their calls while servers do not reply, and end after a limit (decision 161)."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from wharf.cli.common.errors import CliError
from wharf.cli.common.sentences import print_notice
from wharf.cli.common.server_commands import OUTAGE_LIMIT_S, Session
from wharf.contract.client import Unreachable
from wharf.contract.client.errors import TRANSIENT_ERRORS, RequestRefused, UnexpectedReply, get_requested_delay_s
from wharf.world.backoff import Backoff

T = TypeVar("T")
MIN_PAUSE_S: Final = 1.0
MAX_PAUSE_S: Final = 5.0
"""The longest pause between two attempts. A user waits for the display."""


class Outage:
    """The time since servers stopped replying to a command that follows something.

    `continuation` says what goes on without the command, and how to see it; the error after the limit ends with it.
    """

    def __init__(self, session: Session, continuation: str, *, notice: str = "") -> None:
        """`notice`: what the failure interrupts, for the line that the command prints when an outage begins."""
        self._session = session
        self._continuation = continuation
        self._notice = f"{notice}: " if notice else ""
        self._began_s: float | None = None
        self._backoff = Backoff(session.world.random, min_s=MIN_PAUSE_S, max_s=MAX_PAUSE_S)

    def call(self, request: Callable[[], T]) -> T:
        """Return the result of a request, which is repeated while servers do not reply. Raises CliError at the limit."""
        while True:
            try:
                result = request()
            except (Unreachable, *TRANSIENT_ERRORS) as error:
                if isinstance(error, UnexpectedReply):
                    raise
                self._session.pause(self.next_pause_s(error))
            else:
                self.end()
                return result

    async def call_async(self, request: Callable[[], Awaitable[T]]) -> T:
        """Return the result of a request of an asyncio client, as `call` does."""
        while True:
            try:
                result = await request()
            except (Unreachable, *TRANSIENT_ERRORS) as error:
                if isinstance(error, UnexpectedReply):
                    raise
                await asyncio.sleep(self.next_pause_s(error))
            else:
                self.end()
                return result

    def next_pause_s(self, error: Unreachable | RequestRefused) -> float:
        """Return the pause before the next attempt, after `error`. Raises CliError if the outage has reached the limit."""
        now_s = self._session.world.monotonic_s()
        if self._began_s is None:
            self._began_s = now_s
            limit = f"trying again for up to {OUTAGE_LIMIT_S:g} s"
            print_notice(f"wharf: {self._notice}{error}; {limit}; Ctrl-C ends the command")
        if now_s - self._began_s >= OUTAGE_LIMIT_S:
            raise CliError(f"no reply for {OUTAGE_LIMIT_S:g} s: {error}; {self._continuation}") from error
        return self._backoff.next_delay_s(get_requested_delay_s(error))

    def end(self) -> None:
        """Start the limit and the pauses again, because a server has replied."""
        self._began_s = None
        self._backoff.reset()
