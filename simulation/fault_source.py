"""Draws the faults and delays of messages from the seed, and counts all faults.

The network and the connections to the log apply them.
"""

from random import Random
from typing import Final

import msgspec

NO_FAULTS: Final = 0.0
NORMAL_FAULT_RATE: Final = 1.0
HIGH_FAULT_RATE: Final = 6.0

LONG_DELAY: Final = "long delay"
LOST_REQUEST: Final = "lost request"
LOST_REPLY: Final = "lost reply"
REPEATED_REQUEST: Final = "repeated request"
SLOW_READER: Final = "slow reader"
NETWORK_FAULTS: Final = (LONG_DELAY, LOST_REQUEST, LOST_REPLY, REPEATED_REQUEST, SLOW_READER)


class Delivery(msgspec.Struct, frozen=True):
    """The delays and faults of one request and its reply."""

    request_s: float = 0.0
    reply_s: float = 0.0
    reply_start_s: float = 0.0  # By how much the start of the reply is delayed in addition. The rest follows it.
    read_s: float = 0.0  # How long the caller takes for each part of the reply's body.
    is_request_lost: bool = False
    is_reply_lost: bool = False
    is_repeated: bool = False


class FaultSource:
    """Draws faults. `fault_rate` scales their frequency: 0 disables them, 1 is normal."""

    def __init__(self, seed: int, *, name: str = "network") -> None:
        self.fault_rate = NORMAL_FAULT_RATE
        self.counts: dict[str, int] = {}
        self._random = Random(f"{seed}/weather/{name}")

    def draw_fault(self, fault: str, *, once_in: int) -> bool:
        """Return whether this fault happens now, on average once in `once_in` calls. If it does, count it."""
        if self._random.random() * once_in >= self.fault_rate:
            return False
        self.count_fault(fault)
        return True

    def count_fault(self, fault: str) -> None:
        self.counts[fault] = self.counts.get(fault, 0) + 1

    def draw_delay_s(self) -> float:
        """Return a delay: mostly below 2 ms, sometimes up to 50 ms."""
        draw = self._random
        return draw.uniform(0.000_1, 0.002) if draw.random() < 0.95 else draw.uniform(0.002, 0.05)

    def draw_long_delay_s(self) -> float:
        return self._random.uniform(0.1, 4.0)

    def draw_detection_delay_s(self) -> float:
        """Return the time until a caller's machine detects that a connection is broken."""
        return self._random.uniform(0.01, 0.5) if self._random.random() < 0.5 else self._random.uniform(1.0, 15.0)

    def draw_delivery(self) -> Delivery:
        """Return the delays and faults of the next request and its reply."""
        request_s, reply_s, reply_start_s = self.draw_delay_s(), self.draw_delay_s(), 0.0
        if self.draw_fault(LONG_DELAY, once_in=150):
            if self._random.random() < 0.5:
                request_s += self.draw_long_delay_s()
            else:
                reply_start_s = self.draw_long_delay_s()
        return Delivery(
            request_s=request_s,
            reply_s=reply_s,
            reply_start_s=reply_start_s,
            read_s=self._random.uniform(0.01, 0.3) if self.draw_fault(SLOW_READER, once_in=200) else 0.0,
            is_request_lost=self.draw_fault(LOST_REQUEST, once_in=300),
            is_reply_lost=self.draw_fault(LOST_REPLY, once_in=200),
            is_repeated=self.draw_fault(REPEATED_REQUEST, once_in=300),
        )
