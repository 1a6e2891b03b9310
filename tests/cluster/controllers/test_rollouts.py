"""When a rollout that does not come on has failed."""

from typing import NamedTuple

import pytest
from msgspec.structs import replace

from tests.builders import a_group, a_job
from tests.cluster.scheduling.loop import Loop
from tests.kit.state import SECOND_NS
from wharf.cluster.operations.deployments import PROGRESS_DEADLINE_DESCRIPTION
from wharf.cluster.state.tables import ALLOCATIONS, DEPLOYMENTS
from wharf.contract.model.allocations.allocation import AllocDeploymentStatus, ClientStatus, DesiredTransition
from wharf.contract.model.deployments import DeploymentStatus
from wharf.contract.model.evaluations import EvaluationTrigger
from wharf.contract.model.jobs.group_policies import ReschedulePolicy, UpdatePolicy
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.times import to_datetime

ROLLING = UpdatePolicy(
    max_parallel=3, min_healthy_time=SECOND_NS, healthy_deadline=20 * SECOND_NS, progress_deadline=60 * SECOND_NS
)
RETRY = ReschedulePolicy(unlimited=True, delay=5 * SECOND_NS, delay_function="constant")


class Tried(NamedTuple):
    """A rollout that waits for the promotion of its canaries: how many are wanted, and how its allocations are."""

    wanted: int
    canaries_wanted: int
    canaries: list[bool]
    others: list[bool]


def a_rollout(count: int) -> Loop:
    loop = Loop()
    for node_id in ("n0", "n1", "n2"):
        loop.with_node(node_id)
    loop.register(a_job("shop", a_group("web", count=count, update=ROLLING, reschedule_policy=RETRY)))
    loop.think()
    return loop


@pytest.mark.parametrize(
    ("tried", "becomes"),
    [
        pytest.param(Tried(2, 1, [False], [True]), DeploymentStatus.FAILED, id="only others are well"),
        pytest.param(
            Tried(1, 2, [True], []), DeploymentStatus.FAILED, id="as many as are wanted, and too few canaries"
        ),
        pytest.param(Tried(2, 1, [True], [False]), DeploymentStatus.RUNNING, id="all canaries are well"),
    ],
)
def test_a_rollout_whose_canaries_are_not_all_well_at_its_deadline_waits_for_nobody(
    tried: Tried, becomes: DeploymentStatus
) -> None:
    loop = a_rollout(len(tried.canaries) + len(tried.others))
    for allocation, is_well in zip(loop.live(), [*tried.canaries, *tried.others], strict=True):
        told = loop.tell(allocation, ClientStatus.RUNNING, healthy=is_well)
        marked = replace(told.desired_transition or DesiredTransition(), reschedule=True)
        loop.put_led(ALLOCATIONS.build_put(replace(told, desired_transition=marked)))
    deployment = loop.deployment()
    group = replace(
        (deployment.task_groups or {})["web"],
        desired_total=tried.wanted,
        desired_canaries=tried.canaries_wanted,
        placed_canaries=tuple(each.id for each in loop.live()[: len(tried.canaries)]),
        require_progress_by=to_datetime(loop.now_ns),
    )
    loop.put_led(DEPLOYMENTS.build_put(replace(deployment, task_groups={"web": group})))

    loop.watch()

    assert becomes is loop.deployment().status


def test_a_rollout_does_not_end_while_one_of_it_that_failed_waits_to_be_tried_again() -> None:
    loop = a_rollout(2)
    for allocation in loop.live():
        loop.tell(allocation, ClientStatus.RUNNING, healthy=True)
    deployment = loop.deployment()
    # One that was lost became healthy too before its node stopped it, and is counted.
    group = replace((deployment.task_groups or {})["web"], healthy_allocs=3)
    loop.put_led(DEPLOYMENTS.build_put(replace(deployment, task_groups={"web": group})))
    loop.tell(loop.live()[0], ClientStatus.FAILED, healthy=False)

    loop.look_at(trigger=EvaluationTrigger.NODE_UPDATE)  # Before anybody who watches the rollout has seen it.
    loop.think()
    loop.pass_time(6)
    loop.settle()

    assert 2 == len(loop.live())
    assert DeploymentStatus.SUCCESSFUL is loop.deployment().status


def test_a_clock_that_was_set_back_gives_a_rollout_no_more_than_its_time() -> None:
    loop = a_rollout(2)

    loop.pass_time(-3_600)
    loop.watch()
    loop.pass_time(61)
    loop.watch()

    assert (DeploymentStatus.FAILED, PROGRESS_DEADLINE_DESCRIPTION) == (
        loop.deployment().status,
        loop.deployment().status_description,
    )


def test_a_node_whose_clock_is_ahead_gives_a_rollout_no_more_than_its_time() -> None:
    loop = a_rollout(2)
    well = AllocDeploymentStatus(
        healthy=True, timestamp=to_datetime(loop.now_ns + 3_600 * SECOND_NS), modify_index=WRITE_INDEX
    )
    told = replace(loop.live()[0], deployment_status=well, modify_time=loop.now_ns)
    loop.put_led(ALLOCATIONS.build_put(told))

    assert to_datetime(loop.now_ns + 60 * SECOND_NS) == (loop.deployment().task_groups or {})["web"].require_progress_by
