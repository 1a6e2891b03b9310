"""`python -m wharf.node.supervisor FOLDER NODE WAY`: begins a supervisor of its own session and returns at once."""

import logging
import os
import signal
import sys
from pathlib import Path

from wharf.node.supervisor.process_tracker import MarkTracker, choose_tracker
from wharf.node.supervisor.task_supervisor import SupervisorRunning, TaskSupervisor


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
        keeper = TaskSupervisor(folder, MarkTracker() if way == "mark" else choose_tracker(node))
    except SupervisorRunning:
        return 0
    keeper.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
