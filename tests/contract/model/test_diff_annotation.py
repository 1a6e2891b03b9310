"""Annotations of a job diff: what the scheduler would do."""

from typing import Any

import pytest

from wharf.contract.model.jobs.constraints import Constraint
from wharf.contract.model.jobs.diff import annotate_job_diff, compare_jobs
from wharf.contract.model.jobs.groups import LogConfig, Task, TaskGroup
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.jobs.plan import DesiredUpdates, PlanAnnotations, TaskGroupDiff
from wharf.contract.model.jobs.services import Service


def a_job(count: int = 1, **fields: Any) -> Job:
    task = Task(**{"name": "web", "driver": "exec", **fields})
    return Job(id="shop", task_groups=(TaskGroup(name="front", count=count, tasks=(task,)),))


def annotate(old: Job | None, new: Job | None, annotations: PlanAnnotations | None = None) -> TaskGroupDiff:
    (group,) = annotate_job_diff(compare_jobs(old, new), annotations).task_groups or ()
    return group


def list_task_annotations(group: TaskGroupDiff) -> tuple[str, ...] | None:
    (task,) = group.tasks or ()
    return task.annotations


def test_update_counts_have_the_labels_of_a_plan_and_omit_zeros() -> None:
    updates = DesiredUpdates(
        ignore=1, place=2, stop=3, migrate=4, canary=5, in_place_update=6, destructive_update=7, preemptions=8
    )

    group = annotate(a_job(), a_job(), PlanAnnotations(desired_tg_updates={"front": updates}))

    assert group.updates == {
        "ignore": 1,
        "create": 2,
        "destroy": 3,
        "migrate": 4,
        "canary": 5,
        "in-place update": 6,
        "create/destroy update": 7,
    }
    assert annotate(a_job(), a_job(), PlanAnnotations(desired_tg_updates={"front": DesiredUpdates()})).updates is None


@pytest.mark.parametrize(("old", "new", "forces"), [(1, 3, "forces create"), (3, 1, "forces destroy")])
def test_a_changed_count_is_annotated_with_create_or_destroy(old: int, new: int, forces: str) -> None:
    (count,) = annotate(a_job(count=old), a_job(count=new)).fields or ()

    assert (count.name, count.annotations) == ("Count", (forces,))


@pytest.mark.parametrize(
    ("change", "forces"),
    [
        ({"kill_timeout": 9_000_000_000}, "forces in-place update"),
        ({"log_config": LogConfig(max_files=3)}, "forces in-place update"),
        ({"log_config": LogConfig(disabled=True)}, "forces create/destroy update"),
        ({"services": (Service(name="api"),)}, "forces in-place update"),
        ({"constraints": (Constraint(operand="distinct_hosts"),)}, "forces in-place update"),
        ({"driver": "docker"}, "forces create/destroy update"),
        ({"env": {"A": "1"}}, "forces create/destroy update"),
        ({"kill_timeout": 9_000_000_000, "user": "nobody"}, "forces create/destroy update"),
    ],
)
def test_a_changed_task_is_annotated_with_the_kind_of_update(change: dict[str, Any], forces: str) -> None:
    assert list_task_annotations(annotate(a_job(), a_job(**change))) == (forces,)


def test_tasks_of_a_new_group_are_created_and_tasks_of_a_removed_group_destroyed() -> None:
    assert list_task_annotations(annotate(None, a_job())) == ("forces create",)
    assert list_task_annotations(annotate(a_job(), None)) == ("forces destroy",)


def test_an_unchanged_task_forces_nothing() -> None:
    assert list_task_annotations(annotate(a_job(), a_job())) is None
