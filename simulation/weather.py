"""What befalls messages: how long they take, which are lost, which come twice. All of it drawn from the seed.

It decides and counts; the network and the doors to the log carry it out.
"""

from random import Random
from typing import Final

import msgspec

CALM: Final = 0.0
USUAL: Final = 1.0
STORM: Final = 6.0

LONG_DELAY: Final = "long delay"
LOST_REQUEST: Final = "lost request"
LOST_REPLY: Final = "lost reply"
REPEATED_REQUEST: Final = "repeated request"
SLOW_READER: Final = "slow reader"
NETWORK_FAULTS: Final = (LONG_DELAY, LOST_REQUEST, LOST_REPLY, REPEATED_REQUEST, SLOW_READER)


class Fate(msgspec.Struct, frozen=True):
    """What befalls one request and its reply."""

    request_s: float = 0.0
    reply_s: float = 0.0
    read_s: float = 0.0  # How long the caller takes for each part of the reply's body.
    is_request_lost: bool = False
    is_reply_lost: bool = False
    is_repeated: bool = False


class Weather:
    """`roughness` scales how often faults strike: 0 in a calm, 1 as a rule, more in a storm."""

    def __init__(self, seed: int, *, name: str = "network") -> None:
        self.roughness = USUAL
        self.counts: dict[str, int] = {}
        self._random = Random(f"{seed}/weather/{name}")

    def strikes(self, fault: str, *, once_in: int) -> bool:
        """Whether this fault happens now, on average once in so many chances; counted if it does."""
        if self._random.random() * once_in >= self.roughness:
            return False
        self.count(fault)
        return True

    def count(self, fault: str) -> None:
        self.counts[fault] = self.counts.get(fault, 0) + 1

    def travel_s(self) -> float:
        """Mostly a fraction of a millisecond, at times many of them."""
        draw = self._random
        return draw.uniform(0.000_1, 0.002) if draw.random() < 0.95 else draw.uniform(0.002, 0.05)

    def long_delay_s(self) -> float:
        return self._random.uniform(0.1, 4.0)

    def noticed_after_s(self) -> float:
        """How long a caller waits until its machine tells that the line is dead."""
        return self._random.uniform(0.01, 0.5) if self._random.random() < 0.5 else self._random.uniform(1.0, 15.0)

    def fate(self) -> Fate:
        request_s, reply_s = self.travel_s(), self.travel_s()
        if self.strikes(LONG_DELAY, once_in=150):
            if self._random.random() < 0.5:
                request_s += self.long_delay_s()
            else:
                reply_s += self.long_delay_s()
        return Fate(
            request_s=request_s,
            reply_s=reply_s,
            read_s=self._random.uniform(0.01, 0.3) if self.strikes(SLOW_READER, once_in=200) else 0.0,
            is_request_lost=self.strikes(LOST_REQUEST, once_in=300),
            is_reply_lost=self.strikes(LOST_REPLY, once_in=200),
            is_repeated=self.strikes(REPEATED_REQUEST, once_in=300),
        )
