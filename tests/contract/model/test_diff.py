"""The difference of two jobs, as the reply of a plan shows it."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given

from tests.builders import some_job_settings
from tests.contract.model.strategies import records
from wharf.contract.model.jobs.canonical_form import canonicalize_job
from wharf.contract.model.jobs.constraints import Constraint
from wharf.contract.model.jobs.diff import compare_jobs, singularize
from wharf.contract.model.jobs.group_policies import EphemeralDisk, UpdatePolicy
from wharf.contract.model.jobs.groups import Task, TaskGroup
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.jobs.networks import NetworkResource, Port
from wharf.contract.model.jobs.plan import DiffType, FieldDiff, JobDiff, ObjectDiff, TaskDiff, TaskGroupDiff
from wharf.contract.model.jobs.resources import Resources
from wharf.contract.model.jobs.services import Service
from wharf.contract.model.jobs.steps import Need

Change = Callable[[Job], Job]


def a_task(name: str = "web", **fields: Any) -> Task:
    return Task(**{"name": name, "driver": "exec", "resources": Resources(cpu=100), **fields})


def a_group(name: str = "front", *tasks: Task, **fields: Any) -> TaskGroup:
    return TaskGroup(**{"name": name, "count": 1, "tasks": tasks or (a_task(),), **fields})


def a_job(*groups: TaskGroup, **fields: Any) -> Job:
    return Job(**{"id": "shop", "name": "shop", "task_groups": groups or (a_group(),), **fields})


def edited(name: str, old: str, new: str) -> FieldDiff:
    return FieldDiff(type=DiffType.EDITED, name=name, old=old, new=new)


def added(name: str, new: str) -> FieldDiff:
    return FieldDiff(type=DiffType.ADDED, name=name, new=new)


def deleted(name: str, old: str) -> FieldDiff:
    return FieldDiff(type=DiffType.DELETED, name=name, old=old)


def same(name: str, text: str) -> FieldDiff:
    return FieldDiff(type=DiffType.NONE, name=name, old=text, new=text)


UNCHANGED_GROUP = TaskGroupDiff(type=DiffType.NONE, name="front", tasks=(TaskDiff(type=DiffType.NONE, name="web"),))


@pytest.mark.parametrize(
    ("old", "new", "fields"),
    [
        ({"priority": 50}, {"priority": 70}, (edited("Priority", "50", "70"),)),
        ({"stop": False}, {"stop": True}, (edited("Stop", "false", "true"),)),
        ({"meta": None}, {"meta": {"k": "v"}}, (added("Meta[k]", "v"),)),
        ({"meta": {"k": "v"}}, {"meta": None}, (deleted("Meta[k]", "v"),)),
        ({"meta": {"k": "v", "a": "1"}}, {"meta": {"k": "w", "a": "1"}}, (edited("Meta[k]", "v", "w"),)),
        ({"node_pool": ""}, {"node_pool": "gpu"}, (added("NodePool", "gpu"),)),
        ({"node_pool": "gpu"}, {"node_pool": ""}, (deleted("NodePool", "gpu"),)),
        (
            {"priority": 1, "all_at_once": True},
            {"priority": 2, "all_at_once": False},
            (edited("AllAtOnce", "true", "false"), edited("Priority", "1", "2")),
        ),
    ],
)  # fmt: skip
def test_only_changed_fields_of_a_job_are_listed_sorted(
    old: dict[str, Any], new: dict[str, Any], fields: tuple[FieldDiff, ...]
) -> None:
    expected = JobDiff(type=DiffType.EDITED, id="shop", fields=fields, task_groups=(UNCHANGED_GROUP,))

    assert compare_jobs(a_job(**old), a_job(**new)) == expected


def object_with(type_: DiffType, name: str, *fields: FieldDiff) -> ObjectDiff:
    return ObjectDiff(type=type_, name=name, fields=fields)


ON_LINUX = Constraint(l_target="${attr.kernel.name}", r_target="linux", operand="=")
ON_ARM = Constraint(l_target="${attr.cpu.arch}", r_target="arm64", operand="=")


@pytest.mark.parametrize(
    ("old", "new", "objects"),
    [
        pytest.param(
            {"constraints": None},
            {"constraints": (ON_LINUX,)},
            (
                object_with(
                    DiffType.ADDED,
                    "Constraint",
                    added("LTarget", "${attr.kernel.name}"),
                    added("Operand", "="),
                    added("RTarget", "linux"),
                ),
            ),
            id="a new member of a list is added whole",
        ),
        pytest.param(
            {"constraints": (ON_LINUX, ON_ARM)},
            {"constraints": (ON_ARM, ON_LINUX)},
            None,
            id="members that are equal are the same in any order",
        ),
        pytest.param(
            {"datacenters": ("dc1", "dc2")},
            {"datacenters": ("dc2", "dc3")},
            (
                object_with(
                    DiffType.EDITED,
                    "Datacenters",
                    deleted("Datacenters", "dc1"),
                    same("Datacenters", "dc2"),
                    added("Datacenters", "dc3"),
                ),
            ),
            id="a list of texts shows added, deleted and unchanged texts",
        ),
        pytest.param(
            {"datacenters": ("dc1", "dc2")},
            {"datacenters": ("dc2", "dc1")},
            (
                object_with(
                    DiffType.EDITED,
                    "Datacenters",
                    edited("Datacenters", "dc1", "dc2"),
                    edited("Datacenters", "dc2", "dc1"),
                ),
            ),
            id="a mere change of order is not hidden",
        ),
    ],
)
def test_lists_are_shown_as_objects(
    old: dict[str, Any], new: dict[str, Any], objects: tuple[ObjectDiff, ...] | None
) -> None:
    assert compare_jobs(a_job(**old), a_job(**new)).objects == objects


def test_an_object_with_a_change_lists_its_other_fields_too() -> None:
    old, new = a_group(ephemeral_disk=EphemeralDisk()), a_group(ephemeral_disk=EphemeralDisk(size_mb=500))

    assert the_group(compare_jobs(a_job(old), a_job(new))).objects == (
        object_with(
            DiffType.EDITED,
            "EphemeralDisk",
            same("Migrate", "false"),
            edited("SizeMB", "300", "500"),
            same("Sticky", "false"),
        ),
    )


def the_group(job: JobDiff) -> TaskGroupDiff:
    assert job.task_groups is not None
    (group,) = job.task_groups
    return group


def the_task(job: JobDiff) -> TaskDiff:
    tasks = the_group(job).tasks
    assert tasks is not None
    (task,) = tasks
    return task


def test_durations_are_shown_in_nanoseconds() -> None:
    old, new = a_task(kill_timeout=5_000_000_000), a_task(kill_timeout=7_000_000_000)

    assert the_task(compare_jobs(a_job(a_group("front", old)), a_job(a_group("front", new)))).fields == (
        edited("KillTimeout", "5000000000", "7000000000"),
    )


def test_the_configuration_of_a_driver_is_compared_leaf_by_leaf() -> None:
    old = a_task(config={"image": "redis:2.8", "args": ["a", "b"], "port_map": [{"db": 6379}]})
    new = a_task(config={"image": "redis:3.2", "args": ["a"], "port_map": [{"db": 6379}], "tty": True})

    assert the_task(compare_jobs(a_job(a_group("front", old)), a_job(a_group("front", new)))).objects == (
        object_with(
            DiffType.EDITED,
            "Config",
            same("args[0]", "a"),
            deleted("args[1]", "b"),
            edited("image", "redis:2.8", "redis:3.2"),
            same("port_map[0][db]", "6379"),
            added("tty", "true"),
        ),
    )


def test_an_empty_environment_variable_differs_from_a_missing_one() -> None:
    old, new = a_task(env={}), a_task(env={"QUIET": ""})

    assert the_task(compare_jobs(a_job(a_group("front", old)), a_job(a_group("front", new)))).fields == (
        added("Env[QUIET]", ""),
    )


def test_services_are_matched_by_name() -> None:
    old, new = (
        a_task(services=(Service(name="api"), Service(name="old"))),
        a_task(services=(Service(name="api", port_label="http"),)),
    )

    objects = the_task(compare_jobs(a_job(a_group("front", old)), a_job(a_group("front", new)))).objects or ()

    assert [(part.type, part.name) for part in objects] == [(DiffType.EDITED, "Service"), (DiffType.DELETED, "Service")]
    assert added("PortLabel", "http") in (objects[0].fields or ())
    assert same("Name", "api") in (objects[0].fields or ())


def test_ports_are_named_static_and_dynamic() -> None:
    new = a_group(
        networks=(
            NetworkResource(
                reserved_ports=(Port(label="ssh", value=22),),
                dynamic_ports=(Port(label="http"),),
            ),
        )
    )

    (network,) = the_group(compare_jobs(a_job(a_group()), a_job(new))).objects or ()

    assert [(part.type, part.name) for part in network.objects or ()] == [
        (DiffType.ADDED, "Dynamic Port"),
        (DiffType.ADDED, "Static Port"),
    ]


def test_a_new_job_is_added_with_every_scalar_field() -> None:
    new = compare_jobs(None, a_job(priority=50))

    assert (new.type, new.id) == (DiffType.ADDED, "shop")
    assert {field.name for field in new.fields or ()} >= {
        "AllAtOnce",
        "Name",
        "Namespace",
        "Priority",
        "Region",
        "Type",
    }
    assert {(field.type, field.old) for field in new.fields or ()} == {(DiffType.ADDED, "")}
    assert the_group(new).type is the_task(new).type is DiffType.ADDED
    assert the_group(new).fields == (
        added("Count", "1"),
        added("PreventRescheduleOnLost", "false"),
    )


def test_a_deleted_job_lists_all_of_its_fields_as_deleted() -> None:
    diff = compare_jobs(a_job(), None)

    assert (diff.type, the_group(diff).type, the_task(diff).type) == (DiffType.DELETED,) * 3


def test_groups_and_tasks_are_paired_by_name_and_sorted() -> None:
    old = a_job(a_group("b"), a_group("a"))
    new = a_job(a_group("c"), a_group("b", a_task("web"), a_task("log")))

    groups = compare_jobs(old, new).task_groups or ()

    assert [(group.name, group.type) for group in groups] == [
        ("a", DiffType.DELETED),
        ("b", DiffType.EDITED),
        ("c", DiffType.ADDED),
    ]
    assert [(task.name, task.type) for task in groups[1].tasks or ()] == [
        ("log", DiffType.ADDED),
        ("web", DiffType.NONE),
    ]


def test_an_unchanged_job_lists_its_groups_and_tasks_without_fields() -> None:
    assert compare_jobs(a_job(), a_job()) == JobDiff(type=DiffType.NONE, id="shop", task_groups=(UNCHANGED_GROUP,))


@pytest.mark.parametrize(
    "field",
    [
        {"status_description": "x"},
        {"version": 7},
        {"stable": True},
        {"submit_time": 7},
        {"create_index": 7},
        {"modify_index": 7},
        {"job_modify_index": 7},
        {"update": UpdatePolicy(max_parallel=3)},
        {"submitter_accessor_id": "a"},
    ],
    ids=lambda field: next(iter(field)),
)
def test_fields_that_the_server_sets_are_never_compared(field: dict[str, Any]) -> None:
    assert compare_jobs(a_job(), a_job(**field)).type is DiffType.NONE


@given(records(Job))
def test_a_job_does_not_differ_from_itself(job: Job) -> None:
    found = compare_jobs(job, job)

    assert collect_types(found) <= {DiffType.NONE}
    assert (found.fields, found.objects) == (None, None)


@given(records(Job), records(Job))
def test_swapping_the_jobs_reverses_the_diff(old: Job, new: Job) -> None:
    new = msgspec.structs.replace(new, id=old.id)

    assert reverse_diff(compare_jobs(old, new)) == compare_jobs(new, old)


@given(records(Job))
def test_a_new_job_adds_what_its_deletion_deletes(job: Job) -> None:
    assert reverse_diff(compare_jobs(None, job)) == compare_jobs(job, None)
    assert collect_types(compare_jobs(None, job)) == {DiffType.ADDED}


def collect_types(part: Any) -> set[DiffType]:
    """Return the types of all parts of a diff, at every depth."""
    found = {part.type}
    for name in ("fields", "objects", "task_groups", "tasks"):
        for inner in getattr(part, name, None) or ():
            found |= collect_types(inner)
    return found


MIRRORED_TYPES = {DiffType.ADDED: DiffType.DELETED, DiffType.DELETED: DiffType.ADDED}


def reverse_diff(part: Any) -> Any:
    """Return the diff with the old and new values swapped."""
    swapped: dict[str, Any] = {"type": MIRRORED_TYPES.get(part.type, part.type)}
    if isinstance(part, FieldDiff):
        swapped |= {"old": part.new, "new": part.old}
    for name in ("fields", "objects", "task_groups", "tasks"):
        if inner := getattr(part, name, None):
            swapped[name] = tuple(reverse_diff(item) for item in inner)
    return msgspec.structs.replace(part, **swapped)


@pytest.mark.parametrize(
    ("plural", "singular"),
    [("Constraints", "Constraint"), ("Affinities", "Affinity"), ("SpreadTarget", "SpreadTarget")],
)
def test_members_of_a_list_are_named_in_the_singular(plural: str, singular: str) -> None:
    assert singularize(plural) == singular


# -- steps of a run


def a_run(*groups: TaskGroup) -> Job:
    return canonicalize_job(a_job(*groups, type="batch"), some_job_settings())


def test_what_the_canonical_form_makes_of_a_step_is_no_difference() -> None:
    needing = a_run(a_group(), a_group(name="ship", depends=(Need(on="front"),)))
    alone = a_run(a_group())

    (front, ship) = compare_jobs(alone, needing).task_groups or ()

    assert (front.type, front.fields, front.objects) == (DiffType.NONE, None, None)
    assert [part.name for part in ship.objects or ()] == [
        "Depends", "EphemeralDisk", "ReschedulePolicy", "RestartPolicy"
    ]  # fmt: skip


def test_needs_are_compared_by_the_step_that_they_name() -> None:
    before = a_run(a_group(), a_group(name="ship", depends=(Need(on="front"),)))
    after = a_run(a_group(), a_group(name="ship", depends=(Need(on="front", when="any"),), may_fail=True))

    ship = (compare_jobs(before, after).task_groups or ())[1]

    assert ship.fields == (added("MayFail", "true"),)
    (need,) = ship.objects or ()
    assert (need.name, need.type) == ("Depends", DiffType.EDITED)
    assert edited("When", "succeeded", "any") in (need.fields or ())
