"""`python -m wharf.node.supervisor FOLDER NODE_ID METHOD`: starts a supervisor in its own session and returns at once.

METHOD `mark` selects process tracking by environment variable; anything else selects the best method available.
"""

import logging
import os
import signal
import sys
from pathlib import Path

from wharf.node.supervisor.process_tracker import MarkTracker, choose_tracker
from wharf.node.supervisor.task_supervisor import SupervisorRunning, TaskSupervisor


def main() -> int:
    """Fork: the child runs the task supervisor, the parent returns at once. Return the exit code of this process."""
    folder, node_id, tracking_method = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    # The child leaves the agent's session, so that neither the agent's end nor its terminal's signals stop it.
    if os.fork():
        return 0
    os.setsid()
    os.umask(0o022)
    for signal_number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(signal_number, lambda *_: None)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s supervisor %(levelname)s %(message)s")
    try:
        supervisor = TaskSupervisor(folder, MarkTracker() if tracking_method == "mark" else choose_tracker(node_id))
    except SupervisorRunning:
        return 0
    supervisor.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
