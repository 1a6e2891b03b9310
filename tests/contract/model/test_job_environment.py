"""Rules that compare a job with its namespace, its node pool and the version that it replaces (jobs.md 2.1, 6)."""

import msgspec
import pytest

from tests.builders import a_batch_job, a_group, a_job, a_parameterized_job, a_periodic_job, a_system_job, a_task
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.jobs.networks import NetworkResource
from wharf.contract.model.jobs.validation import (
    check_drivers,
    check_namespace_and_node_pool,
    check_network_modes,
    find_scaling_error,
    find_update_error,
    merge_findings,
)
from wharf.contract.model.scaling import ScalingPolicy


@pytest.mark.parametrize(
    ("namespace_exists", "pool_exists", "pool", "expected"),
    [
        (True, True, "p", []),
        (False, True, "p", [("Namespace", 'job "shop" is in nonexistent namespace "n"')]),
        (True, False, "p", [("NodePool", 'job "shop" is in nonexistent node pool "p"')]),
        (True, False, "all", []),
    ],
)
def test_namespace_and_pool_must_exist(
    namespace_exists: bool, pool_exists: bool, pool: str, expected: list[tuple[str, str]]
) -> None:
    job = a_job("shop", namespace="n", node_pool=pool)
    findings = check_namespace_and_node_pool(job, namespace_exists=namespace_exists, node_pool_exists=pool_exists)

    assert [(problem.path, problem.message) for problem in findings.problems] == expected


@pytest.mark.parametrize(
    ("enabled", "disabled", "refused_drivers"),
    [
        (None, None, []),
        ((), (), []),
        (("exec",), None, ["TaskGroups[0].Tasks[1].Driver"]),
        (None, ("exec",), ["TaskGroups[0].Tasks[0].Driver"]),
        (("exec", "docker"), ("exec",), ["TaskGroups[0].Tasks[0].Driver"]),
    ],
)
def test_a_namespace_may_limit_drivers(
    enabled: tuple[str, ...] | None, disabled: tuple[str, ...] | None, refused_drivers: list[str]
) -> None:
    job = a_job("shop", a_group("web", a_task("a", driver="exec"), a_task("b", driver="docker")))

    assert [
        problem.path for problem in check_drivers(job, enabled=enabled, disabled=disabled).problems
    ] == refused_drivers


@pytest.mark.parametrize(
    ("mode", "disabled", "is_refused"),
    [("", ("host",), True), ("bridge", ("host",), False), ("cni/x", ("cni/x",), True)],
)
def test_a_namespace_may_limit_network_modes(mode: str, disabled: tuple[str, ...], is_refused: bool) -> None:
    job = a_job("shop", a_group(networks=(NetworkResource(mode=mode),)))
    findings = check_network_modes(job, enabled=None, disabled=disabled)

    assert [problem.path for problem in findings.problems] == (["TaskGroups[0].Networks[0].Mode"] if is_refused else [])


def test_findings_of_several_checks_are_merged() -> None:
    job = a_job("shop")
    findings = check_namespace_and_node_pool(job, namespace_exists=False, node_pool_exists=False)
    drivers = check_drivers(job, enabled=("none",), disabled=None)

    assert [problem.path for problem in merge_findings(findings, drivers).problems] == [
        "Namespace", "NodePool", "TaskGroups[0].Tasks[0].Driver",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (a_job(), a_job(priority=3), None),
        (a_job(), a_batch_job(), 'cannot update job from type "service" to "batch"'),
        (a_periodic_job(), a_batch_job(), "cannot update periodic job to being non-periodic"),
        (a_batch_job(), a_periodic_job(), "cannot update non-periodic job to being periodic"),
        (a_parameterized_job(), a_batch_job(), "cannot update parameterized job to being non-parameterized"),
        (a_batch_job(), a_parameterized_job(), "cannot update non-parameterized job to being parameterized"),
        (a_parameterized_job(), msgspec.structs.replace(a_parameterized_job(), stop=True), None),
    ],
)
def test_changes_that_a_new_version_must_not_make(old: Job, new: Job, reason: str | None) -> None:
    assert find_update_error(old, new) == reason


def test_a_system_job_has_no_count_to_scale() -> None:
    group = a_group(scaling=ScalingPolicy(max=3))

    assert (
        find_scaling_error(a_system_job("s", group)) == "Task groups with job type system do not support scaling blocks"
    )
    assert find_scaling_error(a_job("s", group)) is None
    assert find_scaling_error(a_system_job()) is None
