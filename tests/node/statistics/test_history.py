"""The history of resource usage."""

import os
import time

from wharf.node.statistics.history import MAX_SAMPLES, UsageHistory, UsageSample, render_samples, sum_histories

MINUTE_NS = 60_000_000_000


def use_cpu(seconds: float) -> None:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def test_the_history_shows_cpu_and_memory_of_a_run_between_two_samples() -> None:
    history = UsageHistory()
    pids = [os.getpid()]

    history.record_run("r", pids, at_ns=0, at_s=0.0)
    use_cpu(0.2)
    history.record_run("r", pids, at_ns=MINUTE_NS, at_s=0.4)

    (sample,) = history.list_run_samples("r", 0)
    assert 40.0 < sample.percent < 200.0
    assert sample.bytes > 1 << 20
    assert MINUTE_NS == sample.at_ns


def test_the_machine_has_a_history_too() -> None:
    history = UsageHistory()

    history.record_machine(0)
    use_cpu(0.1)
    history.record_machine(MINUTE_NS)

    (sample,) = history.list_machine_samples(0)
    assert 0.0 < sample.percent <= 100.0
    assert [] == history.list_machine_samples(MINUTE_NS + 1)


def test_only_the_last_minutes_are_retained_and_ended_runs_are_dropped() -> None:
    history = UsageHistory()
    for minute in range(2 * MAX_SAMPLES):
        history.record_run("r", [os.getpid()], at_ns=minute, at_s=float(minute))

    assert (MAX_SAMPLES, 2 * MAX_SAMPLES - 1) == (
        len(history.list_run_samples("r", 0)),
        history.list_run_samples("r", 0)[-1].at_ns,
    )
    history.drop_other_runs(["other"])
    assert [] == history.list_run_samples("r", 0)


def test_a_run_without_processes_is_skipped() -> None:
    history = UsageHistory()

    history.record_run("r", [2**22 + 1], at_ns=0, at_s=0.0)
    history.record_run("r", [], at_ns=1, at_s=1.0)

    assert [] == history.list_run_samples("r", 0)


def test_the_samples_of_all_tasks_are_added_by_time() -> None:
    total = sum_histories([[UsageSample(1, 10.0, 5), UsageSample(2, 20.0, 5)], [UsageSample(2, 1.0, 7)]])

    assert [UsageSample(1, 10.0, 5), UsageSample(2, 21.0, 12)] == total
    assert {"Timestamp": 2, "Percent": 21.0, "TotalTicks": 630.0, "Memory": 12} == render_samples(total, mhz=3_000)[1]
