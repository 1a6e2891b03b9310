"""`one_node` with a wall clock that is ahead by the seconds in `FOLDER/ahead`: `python -m tests.node.stepped_node …`."""

import asyncio
import logging
import sys
from pathlib import Path

from tests.node import one_node
from wharf.node.core.clock import SECOND_NS
from wharf.world import RealWorld


class SteppedWorld(RealWorld):
    def __init__(self, ahead: Path) -> None:
        super().__init__()
        self._ahead = ahead

    def now_ns(self) -> int:
        return super().now_ns() + int(self._ahead.read_text() or "0") * SECOND_NS


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    place = Path(sys.argv[2])
    asyncio.run(one_node.main(sys.argv[1], place, sys.argv[3], SteppedWorld(place / "ahead")))
