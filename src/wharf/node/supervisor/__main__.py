"""`python -m wharf.node.supervisor FOLDER NODE_ID METHOD [ABSENCE_S [FILES]]`: starts a supervisor in its own session and
returns at once.

METHOD `mark` selects process tracking by environment variable; anything else selects the best method available. The
supervisor ends when FOLDER has been missing for ABSENCE_S seconds. Tasks may open FILES files; by default as many as the
supervisor may at its start.
"""

import logging
import os
import signal
import sys
from pathlib import Path

from wharf.node.supervisor.process_tracker import MarkTracker, choose_tracker
from wharf.node.supervisor.supervisor_log import StandardErrorHandler
from wharf.node.supervisor.task_supervisor import MAX_FOLDER_ABSENCE_S, SupervisorRunning, TaskSupervisor
from wharf.world.descriptors import close_on_exec
from wharf.world.process_exit import exit_process


def main() -> int:
    """Fork: the child runs the task supervisor, the parent returns at once. Return the exit code of this process."""
    close_on_exec()
    folder, node_id, tracking_method = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    max_folder_absence_s = float(sys.argv[4]) if len(sys.argv) > 4 else MAX_FOLDER_ABSENCE_S
    max_open_files = int(sys.argv[5]) if len(sys.argv) > 5 else None
    # The child leaves the agent's session, so that neither the agent's end nor its terminal's signals stop it.
    if os.fork():
        return 0
    os.setsid()
    os.umask(0o022)
    for signal_number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(signal_number, lambda *_: None)
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s supervisor %(levelname)s %(message)s",
        handlers=[StandardErrorHandler(folder)],
    )
    try:
        supervisor = TaskSupervisor(
            folder,
            MarkTracker() if tracking_method == "mark" else choose_tracker(node_id),
            max_folder_absence_s=max_folder_absence_s,
            max_open_files_of_programs=max_open_files,
        )
    except SupervisorRunning:
        return 0
    supervisor.run()
    return 0


if __name__ == "__main__":
    exit_process(main())
