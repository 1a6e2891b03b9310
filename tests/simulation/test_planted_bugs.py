"""Each planted bug is detected, for the right reason, within a few seeds. `make faults` plants those that take longer."""

import pytest

from simulation.planted_bugs import BATCH_BUGS, PlantedBug
from simulation.run import run_seed

SEEDS = 12

FIRST_SEEDS = {
    PlantedBug.LOST_LEADER_CHECK: 2,
    PlantedBug.MISSED_WAKE: 2,
    PlantedBug.FORGETFUL_DISK: 6,
    PlantedBug.SAME_SERVER: 12,
    PlantedBug.IGNORED_QUEUE: 3,
}
"""Seeds that detect the bug, because a seed that detects nothing takes three times as long. The default is 1."""

QUICK_BUGS = frozenset(
    {
        PlantedBug.SPLIT_BATCH, PlantedBug.INDEX_BACK, PlantedBug.FORGETFUL_DISK, PlantedBug.GUESSED_OUTCOMES,
        PlantedBug.LOST_LOCK, PlantedBug.ELEMENT_TWICE, PlantedBug.LATE_REPORT, PlantedBug.LOST_STEPS,
        PlantedBug.SKIPPED_PASSES,
    }
)  # fmt: skip
"""Bugs of each kind that a seed detects within about a second of processor time."""

REASONS = {
    # A user who registers a purged job in the version that it had before writes its next version without a summary: only
    # the first version of a job writes one.
    PlantedBug.DROPPED_CONDITION: (
        "JobModifyIndex",
        "went from version",
        "no order of these calls",
        "acknowledged write",
        "has no summary",
    ),
    # The reply to a blocking query is late, or a part of the leader stops.
    PlantedBug.MISSED_WAKE: ("and the reply came", "is still in progress"),
    PlantedBug.LOST_LEADER_CHECK: ("as leader; the leader is",),
    PlantedBug.SPLIT_BATCH: ("has no summary", "is not stored", "was committed at"),
    PlantedBug.INDEX_BACK: ("changed last at", "and then at", "no state of the log"),
    # A node that has lost the exit code of a task reports -1 instead.
    PlantedBug.FORGETFUL_DISK: (
        "is started a second time",
        "still runs",
        "starts after its end was reported as",
        "is reported to have ended as",
        "journal has lost the ends of allocations",
    ),
    PlantedBug.SAME_SERVER: ("although only faults happened that must not cost a node",),
    PlantedBug.LOST_LOCK: ("hold the lock", "run with the lock"),
    PlantedBug.KEPT_LOCK: ("has a free slot",),
    PlantedBug.LOST_RESULT: ("ended with success", "is placed again", "but its needs may hold"),
    PlantedBug.ELEMENT_TWICE: ("is placed twice", "runs twice"),
    PlantedBug.EXCEEDED_LIMIT: ("MaxRunning is",),
    PlantedBug.LATE_REPORT: ("has the result s without a cause",),
    PlantedBug.LOST_STEPS: (
        "before its needs allow",
        "without an answer to its gate",
        "before the job",
        "of the flow has",
    ),
    # A step that is open again has followers that run.
    PlantedBug.STEP_TWICE: ("is placed again", "was placed before its needs allow"),
    PlantedBug.SKIPPED_PASSES: ("before its needs allow", "went from skipped to ready"),
    PlantedBug.EARLY_GATE: ("without an answer to its gate",),
    PlantedBug.IGNORED_CONDITION: ("went from skipped to ready", "its If is false"),
    PlantedBug.LOST_OUTPUTS: ("its texts are not stored", "its If is"),
    PlantedBug.REPLACED_OUTPUTS: ("changed at",),
    PlantedBug.IGNORED_JOB: ("before the job",),
    PlantedBug.IGNORED_QUEUE: ("of the flow has",),
    PlantedBug.LOST_JOB_RESULT: ("without its result",),
    PlantedBug.SLOT_TWICE: ("was launched twice",),
    PlantedBug.GUESSED_OUTCOMES: ("is reported to have ended as", "but these runs failed"),
}


@pytest.mark.parametrize(
    "bug", [bug if bug in QUICK_BUGS else pytest.param(bug, marks=pytest.mark.faults) for bug in PlantedBug]
)
def test_a_planted_bug_is_caught_within_a_few_seeds(bug: PlantedBug) -> None:
    first = FIRST_SEEDS.get(bug, 1)
    for seed in range(first, first + SEEDS):
        failure = run_seed(seed, bug=bug, only_batch=bug in BATCH_BUGS).failure
        if failure is not None:
            assert any(reason in failure.text for reason in REASONS[bug]), failure.text
            return
    raise AssertionError(f"{bug} was not detected by {SEEDS} seeds")
