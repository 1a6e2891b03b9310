"""Whether a silent child process is busy or hangs: the decision, and samples of real processes."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.waiting import wait_until
from wharf.agent.supervision.activity import (
    Activity,
    ActivitySample,
    SilenceLimits,
    classify_activity,
    find_exceeded_limit,
)
from wharf.agent.supervision.activity_reader import take_activity_sample

LIMITS = SilenceLimits(max_busy_s=60.0, max_idle_s=5.0, max_unknown_s=20.0)


@pytest.mark.parametrize(
    ("state", "used_cpu_s", "activity"),
    [
        ("S", 0.0, Activity.IDLE),
        ("S", 0.01, Activity.IDLE),  # Background threads of libraries.
        ("S", 0.02, Activity.BUSY),  # Another thread works and holds the interpreter lock.
        ("S", 1.0, Activity.BUSY),
        ("R", 0.0, Activity.BUSY),  # Waits for a processor.
        ("R", 1.0, Activity.BUSY),
        ("D", 0.0, Activity.BUSY),  # Waits for the disk.
        ("T", 0.0, Activity.STOPPED),
        ("T", 1.0, Activity.STOPPED),  # It was stopped at the end of the interval.
        ("t", 0.0, Activity.STOPPED),
        ("Z", 0.0, Activity.IDLE),
    ],
)
def test_state_and_cpu_time_show_what_a_process_does(state: str, used_cpu_s: float, activity: Activity) -> None:
    assert classify_activity(ActivitySample("S", 0.0, 0.0), ActivitySample(state, used_cpu_s, 1.0)) is activity


def test_a_first_sample_decides_only_by_its_state() -> None:
    classified = [classify_activity(None, ActivitySample(state, 7.0, 1.0)) for state in "SRT"]

    assert classified == [Activity.UNKNOWN, Activity.BUSY, Activity.STOPPED]


def test_without_a_sample_the_activity_is_unknown() -> None:
    assert classify_activity(ActivitySample("S", 7.0, 1.0), None) is Activity.UNKNOWN


@pytest.mark.parametrize(
    ("activity", "silent_s", "inactive_s", "exceeded_s"),
    [
        (Activity.BUSY, 59.9, 0.0, None),
        (Activity.BUSY, 60.0, 0.0, 60.0),
        (Activity.IDLE, 30.0, 4.9, None),
        (Activity.IDLE, 30.0, 5.0, 5.0),
        (Activity.STOPPED, 5.0, 4.9, None),
        (Activity.STOPPED, 5.0, 5.0, 5.0),
        (Activity.IDLE, 60.0, 1.0, 60.0),
        (Activity.STOPPED, 60.0, 1.0, 60.0),
        (Activity.UNKNOWN, 19.9, 19.9, None),
        (Activity.UNKNOWN, 20.0, 0.0, 20.0),
    ],
)
def test_the_limit_of_silence_depends_on_what_the_process_does(
    activity: Activity, silent_s: float, inactive_s: float, exceeded_s: float | None
) -> None:
    assert find_exceeded_limit(activity, LIMITS, silent_s=silent_s, inactive_s=inactive_s) == exceeded_s


@contextmanager
def running_program(text: str) -> Iterator[int]:
    """Run a Python program that first prints a line. Return its process id."""
    process = subprocess.Popen([sys.executable, "-c", f"print(flush=True)\n{text}"], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    try:
        yield process.pid
    finally:
        process.kill()
        process.communicate()


def observe(pid: int) -> Activity:
    """Return what the process does until its CPU time could have grown."""
    earlier = take_activity_sample(pid, time.monotonic())
    began_s = time.monotonic()
    wait_until(lambda: time.monotonic() - began_s > 0.1, what="time passes between two samples")
    return classify_activity(earlier, take_activity_sample(pid, time.monotonic()))


@pytest.mark.parametrize(
    ("text", "activity"),
    [
        ("while True: pass", Activity.BUSY),
        ("import time; time.sleep(1000)", Activity.IDLE),
        (
            "import threading, time; threading.Thread(target=lambda: sum(iter(int, 1))).start(); time.sleep(1000)",
            Activity.BUSY,
        ),
    ],
)
def test_a_real_process_is_busy_or_idle(text: str, activity: Activity) -> None:
    with running_program(text) as pid:
        wait_until(lambda: observe(pid) is activity, what=f"the process is {activity.value}")


def test_a_real_process_is_stopped_and_continues() -> None:
    with running_program("while True: pass") as pid:
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: observe(pid) is Activity.STOPPED, what="the process is stopped")
        os.kill(pid, signal.SIGCONT)
        wait_until(lambda: observe(pid) is Activity.BUSY, what="the process continues")


def test_a_process_that_does_not_exist_has_no_sample() -> None:
    with running_program("") as pid:
        pass

    assert take_activity_sample(pid, 0.0) is None
