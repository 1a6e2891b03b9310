"""The end of a process that leaves its memory to the kernel."""

import os
import subprocess
import sys

PROGRAM = """
import atexit, sys, threading
from concurrent.futures import ThreadPoolExecutor
from wharf.world.process_exit import exit_process

class Held:
    def __del__(self):
        print("deleted")

held = Held()
held.itself = held
may_end = threading.Event()
executor = ThreadPoolExecutor()
executor.submit(lambda: (may_end.wait(), print("thread ended")))
executor.submit(lambda: None).result()
atexit.register(print, "exit function ran")
print("error text", end="", file=sys.stderr)
may_end.set()
exit_process(7)
"""


def test_threads_exit_functions_and_output_finish_before_the_exit() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (7, "thread ended\nexit function ran\n", "error text")


def test_closed_streams_do_not_change_the_exit_code() -> None:
    program = (
        "import sys; from wharf.world.process_exit import exit_process; print(1); sys.stdout = None; sys.stderr.close(); "
        "exit_process(3)"
    )

    assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == 3


def test_output_that_cannot_be_written_is_a_failure() -> None:
    program = "from wharf.world.process_exit import exit_process; print(1); exit_process(0)"
    buffered = {**os.environ, "PYTHONUNBUFFERED": ""}  # Without a buffer, the output fails before the exit.
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-c", program], stdout=full, env=buffered, timeout=60, check=False)

    assert done.returncode == 120
