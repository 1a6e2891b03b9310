"""The clock of heartbeat deadlines. It pauses while this server cannot receive heartbeats, so that no node is blamed for it.

Heartbeats reach the leader's brain through the api processes of its own server and of other servers. Each of them sends
the brain a pulse every `PULSE_INTERVAL_S`. A pulse states up to which time all heartbeats that arrived there have been
passed on: its progress. The clock only advances up to the oldest progress, so a heartbeat that waits in a slow process
counts before its deadline can pass. The clock pauses in these times:

| Time | Cause |
|---|---|
| an outage | the progress of an api process is more than `MAX_GAP_S` old: it is dead, stopped, busy or much too slow |
| a stall | the brain itself did not run: it was stopped or busy, or the machine was suspended |
| a recovery after one of them | nodes must notice the failed heartbeat and send another one |

Pauses use up a budget, which is refilled while the clock runs. With an empty budget the clock advances with the progress,
so that a dead node is found although a server has problems all the time, and a slow server still loses no node. An api
process that is silent no longer counts after that. The clock is in memory only; a new term begins with `restart`.
"""

import math
from collections.abc import Container
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
MAX_PEER_SILENCE_S: Final = 60.0
"""How long an api process of another server may be silent before it no longer counts.

Nodes find another server within 15 s. The time must be longer, because all servers may be slow at the same time.
"""
MAX_DELAY_S: Final = 300.0
"""The longest delay that a pulse may report. Protects against senseless numbers of other servers."""
MAX_SOURCES: Final = 256
"""How many api processes one clock observes. Protects memory; a cluster has far fewer."""


class _Source:
    """What the clock knows about one api process."""

    __slots__ = ("member_id", "progress_s", "pulse_s")

    def __init__(self, now_s: float, *, member_id: str) -> None:
        self.member_id = member_id
        """The other server that it belongs to; empty for the own server."""
        self.pulse_s = now_s
        """When its newest pulse arrived."""
        self.progress_s = now_s
        """All heartbeats that arrived there until this time have been received here."""


class ReceptionClock:
    """Counts the seconds in which this server could receive heartbeats. All arguments are monotonic times of the brain."""

    def __init__(self, now_s: float, *, max_pause_s: float) -> None:
        """`max_pause_s`: the full budget, which is the longest pause in a row while the brain runs."""
        self.max_pause_s = max_pause_s
        self._budget_s = max_pause_s
        self._value_s = now_s
        """The reading of the clock. It begins at the monotonic time, and later falls behind it by all pauses."""
        self._counted_until_s = now_s
        """Up to this time, each second was counted as run or paused."""
        self._read_at_s = now_s
        self._recovered_at_s = now_s
        self._sources: dict[str, _Source] = {}
        self.outage_since_s: float | None = None
        """Since when heartbeats cannot be received, or `None`."""

    def restart(self, now_s: float) -> None:
        """Forget the past at the start of a term: no outage, no recovery, a full budget. The reading never falls."""
        self._budget_s = self.max_pause_s
        self._counted_until_s = self._read_at_s = self._recovered_at_s = now_s
        self._sources = {
            name: _Source(now_s, member_id="") for name, source in self._sources.items() if not source.member_id
        }
        self.outage_since_s = None

    def record_pulse(self, source: str, now_s: float, *, delay_s: float = 0.0, member_id: str = "") -> None:
        """Record a pulse of the api process `source`. From now on, further pulses of it are expected.

        `delay_s`: the pulse vouches for all heartbeats that arrived there until this time ago. `member_id`: the other
        server that the process belongs to.
        """
        self.read_s(now_s)  # Counts the time without pulses of this process before it ends.
        found = self._sources.get(source)
        if found is None:
            if len(self._sources) >= MAX_SOURCES:
                return
            found = self._sources[source] = _Source(now_s, member_id=member_id)
            found.progress_s = -math.inf
        found.pulse_s = now_s
        found.progress_s = max(found.progress_s, now_s - min(max(0.0, delay_s), MAX_DELAY_S))
        self.read_s(now_s)

    def retain_members(self, member_ids: Container[str]) -> None:
        """Expect no further pulses of other servers than these: the others have left the cluster."""
        for name, source in list(self._sources.items()):
            if source.member_id and source.member_id not in member_ids:
                del self._sources[name]

    def list_silent_sources(self, now_s: float) -> list[str]:
        """Return the api processes whose progress is too old."""
        return [name for name, source in self._sources.items() if now_s - source.progress_s > MAX_GAP_S]

    def measure_isolation_s(self, now_s: float) -> float:
        """Return for how long all api processes of this server have been silent; 0 if none has ever sent a pulse."""
        pulses_s = [source.pulse_s for source in self._sources.values() if not source.member_id]
        return now_s - max(pulses_s, default=now_s)

    def measure_silence_s(self, member_id: str, now_s: float) -> float | None:
        """Return for how long all api processes of this other server have been silent; `None` if none is expected."""
        pulses_s = [source.pulse_s for source in self._sources.values() if source.member_id == member_id]
        return now_s - max(pulses_s) if pulses_s else None

    def read_s(self, now_s: float) -> float:
        """Count the time since the last reading and return the clock's reading."""
        stalled_s = now_s - self._read_at_s
        self._read_at_s = now_s
        if stalled_s > MAX_GAP_S:
            self._end_stall(now_s, stalled_s)
        for name, source in list(self._sources.items()):
            if source.member_id and now_s - source.pulse_s > MAX_PEER_SILENCE_S:
                del self._sources[name]
        progress_s = min((source.progress_s for source in self._sources.values()), default=now_s)
        if now_s - progress_s > MAX_GAP_S:
            if self.outage_since_s is None:
                self.outage_since_s = progress_s
            self._count_outage(now_s)
            return self._value_s
        if self.outage_since_s is not None:
            self._recovered_at_s = now_s + min(now_s - self.outage_since_s, MAX_RECOVERY_S)
            self.outage_since_s = None
        self._count_until(progress_s)
        return self._value_s

    def read_ahead_s(self, now_s: float) -> float:
        """Return the reading that the clock will have once it has counted the time until now.

        A deadline is counted from here: its TTL begins now, not at the time up to which the clock has advanced.
        """
        return self.read_s(now_s) + max(0.0, now_s - self._counted_until_s)

    def _count_outage(self, now_s: float) -> None:
        """Count the time until now as paused, as long as there is a budget. Then count up to the progress.

        An api process that has been silent for `MAX_PEER_SILENCE_S` does not count then.
        """
        assert self.outage_since_s is not None, "an outage has begun"
        paused_s = max(0.0, min(now_s - self._counted_until_s, self._budget_s))
        self._budget_s -= paused_s
        self._counted_until_s += paused_s
        alive = [source.progress_s for source in self._sources.values() if now_s - source.pulse_s <= MAX_PEER_SILENCE_S]
        until_s = min(alive, default=now_s)
        if self._counted_until_s < until_s and self._budget_s <= 0.0:
            self._value_s += until_s - self._counted_until_s
            self._counted_until_s = until_s

    def _end_stall(self, now_s: float, stalled_s: float) -> None:
        """Count a time in which the brain did not run as paused.

        It uses at most `MAX_RECOVERY_S` of the budget, because a suspended machine may be away for hours. Pulses of that
        time were not received either, so each api process has a new `MAX_GAP_S` for its next one. With an empty budget,
        the time counts once a pulse shows that the heartbeats of that time have been received.
        """
        charged_s = min(stalled_s, MAX_RECOVERY_S)
        paused_s = min(charged_s, self._budget_s)
        self._budget_s -= paused_s
        self._counted_until_s = now_s - (charged_s - paused_s)
        self._recovered_at_s = max(self._recovered_at_s, now_s + charged_s)
        for source in self._sources.values():
            source.pulse_s, source.progress_s = now_s, self._counted_until_s

    def _count_until(self, until_s: float) -> None:
        """Count the time up to `until_s` as paused until the recovery has ended, and as run afterwards."""
        if until_s <= self._counted_until_s:
            return
        paused_s = max(0.0, min(until_s, self._recovered_at_s) - self._counted_until_s)
        self._pause(paused_s)
        run_s = until_s - self._counted_until_s - paused_s
        self._value_s += run_s
        self._budget_s = min(self.max_pause_s, self._budget_s + run_s)
        self._counted_until_s = until_s

    def _pause(self, seconds: float) -> None:
        """Take a pause from the budget. Time beyond the budget counts as run."""
        paused_s = min(seconds, self._budget_s)
        self._budget_s -= paused_s
        self._value_s += seconds - paused_s
