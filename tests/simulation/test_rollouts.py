"""The invariants of rollouts: each detects its violation."""

from functools import partial
from typing import Any

from msgspec.structs import replace

from simulation.invariants import UPDATE_STOP_DESCRIPTION
from simulation.rollout_invariants import CHANGE_NOTICE_S, RolloutInvariants
from tests.builders import a_group, a_job
from tests.simulation.small_log import SmallLog
from tests.simulation.test_invariants import a_node, an_allocation
from wharf.cluster.state.tables import ALLOCATIONS, DEPLOYMENTS, JOB_VERSIONS, JOBS, NAMESPACES, NODES, QUOTAS
from wharf.contract.model.allocations.allocation import AllocDeploymentStatus, ClientStatus, DesiredStatus
from wharf.contract.model.deployments import Deployment, DeploymentGroup, DeploymentStatus
from wharf.contract.model.jobs.group_policies import UpdatePolicy
from wharf.contract.model.jobs.job import Job, JobType, Parameterized
from wharf.contract.model.namespaces import Namespace
from wharf.contract.model.nodes.node import NodeStatus, SchedulingEligibility
from wharf.contract.model.quotas import Quota, QuotaLimit, RegionLimit

HEALTHY = AllocDeploymentStatus(healthy=True)
CANARY = AllocDeploymentStatus(canary=True)


def a_watched_log(*, at_s: float = CHANGE_NOTICE_S + 1.0) -> SmallLog:
    log = SmallLog()
    log.put((NODES, replace(a_node(), status=NodeStatus.READY)))
    RolloutInvariants(log.history, lambda: at_s)
    return log


def a_version(number: int = 0, *, value: str = "a", type: JobType = JobType.SERVICE, **fields: Any) -> Job:
    update = UpdatePolicy(max_parallel=1)
    return replace(
        a_job("shop", a_group("web", update=update, count=3)),
        type=type,
        version=number,
        meta={"value": value},
        **fields,
    )


def a_deployment(**group: Any) -> Deployment:
    return Deployment(
        id="d1", namespace="default", job_id="shop", status=DeploymentStatus.RUNNING,
        task_groups={"web": DeploymentGroup(**group)},
    )  # fmt: skip


def running(id: str, **fields: Any) -> Any:
    return an_allocation(id, client_status=ClientStatus.RUNNING, task_group="web", namespace="default", **fields)


def stopped_for_update(id: str, **fields: Any) -> Any:
    return replace(
        running(id, **fields), desired_status=DesiredStatus.STOP, desired_description=UPDATE_STOP_DESCRIPTION
    )


def test_a_placement_on_an_ineligible_node_is_a_violation() -> None:
    log = a_watched_log()
    log.put((ALLOCATIONS, an_allocation("a")))
    assert log.failures == []

    ineligible = replace(a_node(), status=NodeStatus.READY, scheduling_eligibility=SchedulingEligibility.INELIGIBLE)
    log.put((NODES, ineligible))
    log.put((ALLOCATIONS, an_allocation("b")))

    assert "which is not eligible" in log.failures[0]


def test_a_completed_batch_allocation_that_is_placed_again_is_a_violation() -> None:
    log = a_watched_log()
    log.put((JOBS, a_version(type=JobType.BATCH)))
    log.put((ALLOCATIONS, running("a", name="shop.web[0]")))
    log.put((ALLOCATIONS, replace(running("a", name="shop.web[0]"), client_status=ClientStatus.COMPLETE)))
    log.put((ALLOCATIONS, running("b", name="shop.web[1]")))
    assert log.failures == []

    log.put((ALLOCATIONS, running("c", name="shop.web[0]")))

    assert "shop.web[0] was completed by a and is placed again" in log.failures[0]


def test_more_canaries_than_desired_are_a_violation() -> None:
    log = a_watched_log()
    log.put((DEPLOYMENTS, a_deployment(desired_canaries=1)))
    log.put((ALLOCATIONS, running("a", deployment_status=CANARY, deployment_id="d1")))
    assert log.failures == []

    log.put((ALLOCATIONS, running("b", deployment_status=CANARY, deployment_id="d1")))

    assert "shop has 2 canaries at 4; desired: 1" in log.failures[0]


def test_more_allocations_down_than_max_parallel_are_a_violation() -> None:
    log = a_watched_log()
    log.put((JOBS, a_version()), (JOB_VERSIONS, a_version()), (DEPLOYMENTS, a_deployment()))
    log.put((ALLOCATIONS, running("a")), (ALLOCATIONS, running("b")), (ALLOCATIONS, running("c")))
    log.put((ALLOCATIONS, stopped_for_update("a")))
    log.put((ALLOCATIONS, running("a2", deployment_id="d1", previous_allocation="a", deployment_status=HEALTHY)))
    log.put((ALLOCATIONS, stopped_for_update("b")))
    assert log.failures == []

    log.put((ALLOCATIONS, stopped_for_update("c")))

    assert "shop may have 1 down for an update and has 2 at 7: b c" in log.failures[0]


def test_a_late_replacement_without_predecessor_counts_for_one_that_is_down() -> None:
    """Two allocations are stopped. One is replaced at once, and one later, without a predecessor."""
    log = a_watched_log()
    version = replace(a_version(), task_groups=(a_group("web", update=UpdatePolicy(max_parallel=2), count=5),))
    log.put((JOBS, version), (JOB_VERSIONS, version), (DEPLOYMENTS, a_deployment()))
    log.put(*((ALLOCATIONS, running(key)) for key in ("a", "b", "c")))
    replacement = running("a2", deployment_id="d1", previous_allocation="a")
    log.put(
        (ALLOCATIONS, stopped_for_update("a", next_allocation="a2")),
        (ALLOCATIONS, stopped_for_update("b")),
        (ALLOCATIONS, replacement),
    )
    log.put((ALLOCATIONS, running("b2", deployment_id="d1", deployment_status=HEALTHY)))
    log.put((ALLOCATIONS, replace(replacement, deployment_status=HEALTHY)))

    log.put((ALLOCATIONS, stopped_for_update("c")))
    assert log.failures == []

    log.put((ALLOCATIONS, running("d")), (ALLOCATIONS, running("e")))
    log.put((ALLOCATIONS, stopped_for_update("d")), (ALLOCATIONS, stopped_for_update("e")))
    assert "shop may have 2 down for an update and has 3 at 9: c d e" in log.failures[0]


def test_the_replacement_of_an_allocation_that_had_ended_is_up_in_place_of_one_that_is_down() -> None:
    """The new version has one allocation less. One of four had ended, and its replacement is healthy first."""
    log = a_watched_log()
    version = replace(a_version(), task_groups=(a_group("web", update=UpdatePolicy(max_parallel=2), count=3),))
    log.put((JOBS, version), (JOB_VERSIONS, version), (DEPLOYMENTS, a_deployment()))
    log.put(*((ALLOCATIONS, running(key)) for key in ("a", "b", "c")))
    log.put((ALLOCATIONS, replace(running("d"), client_status=ClientStatus.COMPLETE)))
    log.put((ALLOCATIONS, stopped_for_update("a")), (ALLOCATIONS, stopped_for_update("b")))
    replacement = running("d2", deployment_id="d1", previous_allocation="d", deployment_status=HEALTHY)
    log.put((ALLOCATIONS, replacement))

    log.put((ALLOCATIONS, stopped_for_update("c")))
    assert log.failures == []

    log.put((ALLOCATIONS, running("e")))
    log.put((ALLOCATIONS, replace(replacement, client_status=ClientStatus.FAILED)))
    log.put((ALLOCATIONS, stopped_for_update("e")))
    assert "shop may have 2 down for an update and has 4 at 10: a b c e" in log.failures[0]


def test_the_replacement_of_a_lost_late_replacement_counts_for_the_same_one() -> None:
    """A stopped allocation is replaced late. The replacement is lost with its node, and is replaced too."""
    log = a_watched_log()
    log.put((JOBS, a_version()), (JOB_VERSIONS, a_version()), (DEPLOYMENTS, a_deployment()))
    log.put((ALLOCATIONS, running("a")), (ALLOCATIONS, running("b")), (ALLOCATIONS, running("c")))
    log.put((ALLOCATIONS, stopped_for_update("a")))
    lost = replace(running("a2", deployment_id="d1", next_allocation="a3"), client_status=ClientStatus.LOST)
    log.put((ALLOCATIONS, replace(lost, desired_status=DesiredStatus.STOP)))
    log.put((ALLOCATIONS, running("a3", deployment_id="d1", previous_allocation="a2", deployment_status=HEALTHY)))

    log.put((ALLOCATIONS, stopped_for_update("b")))
    assert log.failures == []

    log.put((ALLOCATIONS, stopped_for_update("c")))
    assert "shop may have 1 down for an update and has 2 at 8: b c" in log.failures[0]


def test_a_revert_to_another_version_than_the_newest_stable_one_is_a_violation() -> None:
    for value, failures in (("b", []), ("a", ["shop was reverted at 3, but not to 1"])):
        log = a_watched_log()
        stable = [(JOB_VERSIONS, a_version(n, value=v, stable=True)) for n, v in ((0, "a"), (1, "b"))]
        log.put(*stable, (JOBS, a_version(2, value="c")), (JOB_VERSIONS, a_version(2, value="c")))

        reverted = a_version(3, value=value)
        log.put((JOBS, reverted), (JOB_VERSIONS, reverted), kind="deployment-failed")

        assert log.failures == failures


def test_more_nodes_down_than_max_parallel_are_a_violation_for_a_system_job_except_ineligible_ones() -> None:
    log = a_watched_log()
    version = a_version(type=JobType.SYSTEM)
    nodes = [replace(a_node(), id=key, status=NodeStatus.READY) for key in ("n1", "n2", "n3")]
    log.put(*((NODES, node) for node in nodes), (JOBS, version), (JOB_VERSIONS, version))
    log.put((DEPLOYMENTS, a_deployment()), *((ALLOCATIONS, running(f"a{n}", node_id=f"n{n}")) for n in (1, 2, 3)))
    log.put((ALLOCATIONS, stopped_for_update("a1", node_id="n1")))
    log.put((NODES, replace(nodes[0], scheduling_eligibility=SchedulingEligibility.INELIGIBLE)))
    log.put((ALLOCATIONS, stopped_for_update("a2", node_id="n2")))
    assert log.failures == []

    log.put((ALLOCATIONS, stopped_for_update("a3", node_id="n3")))

    assert "shop may have 1 down for an update and has 2 at 7: a2 a3" in log.failures[0]


def a_system_log() -> SmallLog:
    """A log in which a system job is updated and runs on two of three nodes."""
    log = a_watched_log()
    version = a_version(type=JobType.SYSTEM)
    log.put(*((NODES, replace(a_node(), id=key, status=NodeStatus.READY)) for key in ("n1", "n2", "n3")))
    log.put((JOBS, version), (JOB_VERSIONS, version), (DEPLOYMENTS, a_deployment()))
    log.put(*((ALLOCATIONS, running(f"a{n}", name="shop.web[0]", node_id=f"n{n}")) for n in (1, 2)))
    return log


def test_a_node_of_a_system_job_is_up_when_any_version_is_healthy_on_it() -> None:
    log = a_system_log()
    slot = {"name": "shop.web[0]", "node_id": "n1"}
    log.put((ALLOCATIONS, stopped_for_update("a1", **slot)))
    log.put((ALLOCATIONS, running("b1", deployment_id="d0", **slot)))
    log.put((ALLOCATIONS, stopped_for_update("b1", deployment_id="d0", **slot)))
    log.put((ALLOCATIONS, running("c1", deployment_id="d0", deployment_status=HEALTHY, **slot)))

    log.put((ALLOCATIONS, stopped_for_update("a2", name="shop.web[0]", node_id="n2")))
    assert log.failures == []

    log.put((ALLOCATIONS, stopped_for_update("c1", deployment_id="d0", **slot)))
    assert "shop may have 1 down for an update and has 2 at 10: a2 c1" in log.failures[0]


def test_a_node_of_a_system_job_is_not_down_for_an_update_when_the_older_version_is_placed_there_again() -> None:
    violation = "shop may have 1 down for an update and has 2 at 7: a1 a2"
    for deployment_id, failures in (("d0", []), ("d1", [violation])):
        log = a_system_log()
        log.put((ALLOCATIONS, stopped_for_update("a1", name="shop.web[0]", node_id="n1")))
        log.put((ALLOCATIONS, running("b1", name="shop.web[0]", node_id="n1", deployment_id=deployment_id)))

        log.put((ALLOCATIONS, stopped_for_update("a2", name="shop.web[0]", node_id="n2")))

        assert log.failures == failures


def test_a_node_of_a_system_job_is_not_down_for_an_update_when_its_new_allocation_was_preempted_or_lost() -> None:
    slot = {"name": "shop.web[0]", "node_id": "n1", "deployment_id": "d1"}
    placed = running("b1", **slot)
    violation = "shop may have 1 down for an update and has 2 at 8: a1 a2"
    for taken, failures in (
        (replace(placed, desired_status=DesiredStatus.EVICT), []),
        (replace(placed, client_status=ClientStatus.LOST), []),
        (replace(placed, client_status=ClientStatus.FAILED), [violation]),
    ):
        log = a_system_log()
        log.put((ALLOCATIONS, stopped_for_update("a1", name="shop.web[0]", node_id="n1")))
        log.put((ALLOCATIONS, placed))
        log.put((ALLOCATIONS, taken))

        log.put((ALLOCATIONS, stopped_for_update("a2", name="shop.web[0]", node_id="n2")))

        assert log.failures == failures


def test_a_node_on_which_a_system_job_starts_is_not_up_for_another_node() -> None:
    log = a_system_log()
    joined = running("a3", name="shop.web[0]", node_id="n3", deployment_id="d1", deployment_status=HEALTHY)
    log.put((ALLOCATIONS, stopped_for_update("a1", name="shop.web[0]", node_id="n1")))
    log.put((ALLOCATIONS, joined))
    assert log.failures == []

    log.put((ALLOCATIONS, stopped_for_update("a2", name="shop.web[0]", node_id="n2")))
    assert "shop may have 1 down for an update and has 2 at 7: a1 a2" in log.failures[0]


def test_a_healthy_replacement_of_the_previous_version_counts_as_up() -> None:
    log = a_watched_log()
    version = a_version()
    log.put((JOBS, version), (JOB_VERSIONS, version), (DEPLOYMENTS, a_deployment()))
    log.put(*((ALLOCATIONS, running(key)) for key in ("a1", "a2", "a3")))
    log.put((ALLOCATIONS, stopped_for_update("a1", next_allocation="b1")))
    back = running("b1", previous_allocation="a1", deployment_id="d0", deployment_status=HEALTHY)
    log.put((ALLOCATIONS, replace(back, deployment_status=None)))
    log.put((ALLOCATIONS, back))

    log.put((ALLOCATIONS, stopped_for_update("a2")))
    assert log.failures == []
    log.put((ALLOCATIONS, stopped_for_update("a3")))

    assert "shop may have 1 down for an update and has 2 at 8: a2 a3" in log.failures[0]


def test_more_running_children_than_allowed_are_a_violation() -> None:
    for later_s, failures in (
        (CHANGE_NOTICE_S - 1.0, []),
        (CHANGE_NOTICE_S, ["c starts at 4, and 2 children of p run; max_running is 1"]),
    ):
        log, times_s = SmallLog(), [100.0]
        RolloutInvariants(log.history, partial(times_s.__getitem__, -1))
        log.put((NODES, replace(a_node(), status=NodeStatus.READY)))
        parent = a_version(type=JobType.BATCH, parameterized_job=Parameterized(max_running=1))
        children = [(JOBS, replace(a_version(type=JobType.BATCH), id=key, parent_id="p")) for key in ("b", "c")]
        log.put((JOBS, replace(parent, id="p")), *children)
        log.put((ALLOCATIONS, running("a1", job_id="b")))
        times_s.append(100.0 + later_s)
        log.put((ALLOCATIONS, running("a2", job_id="c")))

        assert log.failures == failures


def test_placements_beyond_a_quota_are_a_violation() -> None:
    log = a_watched_log()
    limit = QuotaLimit(region="global", region_limit=RegionLimit(cpu=150))
    log.put((QUOTAS, Quota(name="team", limits=(limit,))), (NAMESPACES, Namespace(name="default", quota="team")))
    late = a_watched_log(at_s=2 * CHANGE_NOTICE_S)
    late.history.replica = log.history.replica
    late.index = log.index
    late.put((ALLOCATIONS, running("a", cpu=100)))
    assert late.failures == []

    late.put((ALLOCATIONS, running("b", cpu=100)))

    assert "namespace default uses 200 cpu of 150" in late.failures[0]
