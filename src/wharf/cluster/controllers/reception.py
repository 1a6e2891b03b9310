"""The clock of heartbeat deadlines. It pauses while this server cannot receive heartbeats, so that no node is blamed for it.

Heartbeats reach the leader's brain through the api processes of its server. Each of them sends the brain a pulse every
`PULSE_INTERVAL_S`. The clock only advances up to the oldest of the newest pulses: until then, heartbeats were received.
The clock pauses in these times:

| Time | Cause |
|---|---|
| an outage | an api process has sent no pulse for more than `MAX_GAP_S`: it is dead, stopped or busy |
| a stall | the brain itself did not run: it was stopped or busy, or the machine was suspended |
| a recovery after one of them | nodes must notice the failed heartbeat and send another one |

Pauses use up a budget, which is refilled while the clock runs. With an empty budget the clock runs on, so that a dead
node is found although a server has problems all the time. The clock is in memory only; a new term begins with `restart`.
"""

from typing import Final

PULSE_INTERVAL_S: Final = 1.0
"""How often an api process sends a pulse to its brain, and how often the leader reads the clock."""
MAX_GAP_S: Final = 3.0
"""The longest time between two pulses, or between two readings of the clock, that counts as normal.

A short busy time is no outage: heartbeats wait in the socket meanwhile and are received a moment later.
"""
MAX_RECOVERY_S: Final = 15.0
"""The longest recovery. It is as long as the outage, up to this limit.

A node with one server waits 10 s for the reply to a heartbeat, and up to 3 s before it sends another one.
"""
MAX_SOURCES: Final = 256
"""How many api processes one clock observes. Protects memory; a server has far fewer."""


class ReceptionClock:
    """Counts the seconds in which this server could receive heartbeats. All arguments are monotonic times of the brain."""

    def __init__(self, now_s: float, *, max_pause_s: float) -> None:
        """`max_pause_s`: the full budget, which is the longest pause in a row while the brain runs."""
        self._max_pause_s = max_pause_s
        self._budget_s = max_pause_s
        self._value_s = now_s
        """The reading of the clock. It begins at the monotonic time, and later falls behind it by all pauses."""
        self._counted_until_s = now_s
        """Up to this time, each second was counted as run or paused."""
        self._read_at_s = now_s
        self._recovered_at_s = now_s
        self._pulses: dict[str, float] = {}  # When each api process sent its newest pulse.
        self.outage_since_s: float | None = None
        """Since when heartbeats cannot be received, or `None`."""

    def restart(self, now_s: float) -> None:
        """Forget the past at the start of a term: no outage, no recovery, a full budget. The reading never falls."""
        self._budget_s = self._max_pause_s
        self._counted_until_s = self._read_at_s = self._recovered_at_s = now_s
        self._pulses = dict.fromkeys(self._pulses, now_s)
        self.outage_since_s = None

    def record_pulse(self, source: str, now_s: float) -> None:
        """Record that the api process `source` can receive heartbeats. From now on, further pulses of it are expected."""
        self.read_s(now_s)  # Counts the time without pulses of this process before it ends.
        if source in self._pulses or len(self._pulses) < MAX_SOURCES:
            self._pulses[source] = now_s
            self.read_s(now_s)

    def list_silent_sources(self, now_s: float) -> list[str]:
        """Return the api processes whose pulse is late."""
        return [source for source, pulse_s in self._pulses.items() if now_s - pulse_s > MAX_GAP_S]

    def measure_isolation_s(self, now_s: float) -> float:
        """Return for how long all api processes have been silent; 0 if none has ever sent a pulse."""
        return now_s - max(self._pulses.values(), default=now_s)

    def read_s(self, now_s: float) -> float:
        """Count the time since the last reading and return the clock's reading."""
        stalled_s = now_s - self._read_at_s
        self._read_at_s = now_s
        if stalled_s > MAX_GAP_S:
            self._end_stall(now_s, stalled_s)
        oldest_s = min(self._pulses.values(), default=now_s)
        if now_s - oldest_s > MAX_GAP_S:
            if self.outage_since_s is None:
                self.outage_since_s = oldest_s
            self._pause(now_s - self._counted_until_s)
            self._counted_until_s = now_s
            return self._value_s
        if self.outage_since_s is not None:
            self._recovered_at_s = now_s + min(now_s - self.outage_since_s, MAX_RECOVERY_S)
            self.outage_since_s = None
        self._count_until(oldest_s)
        return self._value_s

    def _end_stall(self, now_s: float, stalled_s: float) -> None:
        """Count a time in which the brain did not run as paused.

        It uses at most `MAX_RECOVERY_S` of the budget, because a suspended machine may be away for hours. Pulses of that
        time were not received either, so each api process has a new `MAX_GAP_S` for its next one.
        """
        self._pause(min(stalled_s, MAX_RECOVERY_S))
        self._counted_until_s = now_s
        self._recovered_at_s = max(self._recovered_at_s, now_s + min(stalled_s, MAX_RECOVERY_S))
        self._pulses = dict.fromkeys(self._pulses, now_s)

    def _count_until(self, until_s: float) -> None:
        """Count the time up to `until_s` as paused until the recovery has ended, and as run afterwards."""
        if until_s <= self._counted_until_s:
            return
        paused_s = max(0.0, min(until_s, self._recovered_at_s) - self._counted_until_s)
        self._pause(paused_s)
        run_s = until_s - self._counted_until_s - paused_s
        self._value_s += run_s
        self._budget_s = min(self._max_pause_s, self._budget_s + run_s)
        self._counted_until_s = until_s

    def _pause(self, seconds: float) -> None:
        """Take a pause from the budget. Time beyond the budget counts as run."""
        paused_s = min(seconds, self._budget_s)
        self._budget_s -= paused_s
        self._value_s += seconds - paused_s
