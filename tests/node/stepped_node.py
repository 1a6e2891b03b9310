"""Runs `one_node` with a wall clock that is ahead by the number of seconds in the file `FOLDER/ahead`."""

import asyncio
import logging
import sys
from pathlib import Path

from tests.node import one_node
from wharf.contract.model.times import SECOND
from wharf.world import RealWorld


class SteppedWorld(RealWorld):
    """The real world with another wall clock. The monotonic clock stays."""

    def __init__(self, offset_file: Path) -> None:
        super().__init__()
        self._offset_file = offset_file

    def now_ns(self) -> int:
        return super().now_ns() + int(self._offset_file.read_text() or "0") * SECOND


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    folder = Path(sys.argv[2])
    asyncio.run(one_node.main(sys.argv[1], folder, sys.argv[3], SteppedWorld(folder / "ahead")))
