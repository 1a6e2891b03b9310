"""`python -m wharf.node.supervisor FOLDER NODE WAY`: begins a supervisor of its own session and returns at once."""

import logging
import os
import signal
import sys
from pathlib import Path

from wharf.node.supervisor.keeper import Keeper, OtherKeeper
from wharf.node.supervisor.leftovers import ByMark, find_way


def main() -> int:
    folder, node, way = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    # The child belongs to nobody: neither the end of the agent nor a signal to its terminal reaches it.
    if os.fork():
        return 0
    os.setsid()
    os.umask(0o022)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s supervisor %(levelname)s %(message)s")
    try:
        keeper = Keeper(folder, ByMark() if way == "mark" else find_way(node))
    except OtherKeeper:
        return 0
    keeper.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
