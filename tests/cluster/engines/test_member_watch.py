"""What the watch of etcd members reports about members that do not reply, without etcd."""

import asyncio

import pytest

from tests.kit.virtual_time import in_virtual_time, now_s, pass_time
from wharf.cluster.engines.etcd.member_watch import CHECK_INTERVAL_S, MemberWatch
from wharf.cluster.engines.etcd.settings import EtcdSettings
from wharf.world import SimulatedWorld
from wharf.world.tasks import cancel_tasks


class ControlledMembers:
    """The members of an etcd that the test controls."""

    def __init__(self, count: int) -> None:
        self.reasons = [""] * count
        self.checks = [0] * count

    async def check_member(self, position: int, *, timeout_s: float) -> str:  # noqa: ARG002 (the watch passes it)
        self.checks[position] += 1
        return self.reasons[position]


def start_watch(members: ControlledMembers) -> tuple[MemberWatch, asyncio.Task[None]]:
    endpoints = tuple(f"10.0.0.{number + 1}:2379" for number in range(len(members.reasons)))
    world = SimulatedWorld(7, now_s)
    watch = MemberWatch(world, members, EtcdSettings(endpoints=endpoints))
    return watch, world.start_task(watch.run(), name="watch")


async def report(count: int, *lost: int, reason: str = "has not replied") -> tuple[str, str]:
    """Return what is reported, with and without addresses, after these of `count` members have been lost for a while."""
    members = ControlledMembers(count)
    watch, task = start_watch(members)
    await pass_time(CHECK_INTERVAL_S / 2)
    for position in lost:
        members.reasons[position] = reason
    await pass_time(CHECK_INTERVAL_S * 2)
    texts = watch.describe_problem(names_addresses=True), watch.describe_problem(names_addresses=False)
    await cancel_tasks(task)
    return texts


@in_virtual_time
async def test_a_member_is_reported_after_two_failed_checks_with_the_time_of_its_last_reply() -> None:
    members = ControlledMembers(3)
    watch, task = start_watch(members)
    await pass_time(CHECK_INTERVAL_S / 2)
    members.reasons[2] = "has not replied"
    await pass_time(CHECK_INTERVAL_S)
    once = watch.describe_problem(names_addresses=True)
    await pass_time(CHECK_INTERVAL_S)
    twice = watch.describe_problem(names_addresses=True)
    members.reasons[2] = ""
    await pass_time(CHECK_INTERVAL_S)
    again = watch.describe_problem(names_addresses=True)
    await cancel_tasks(task)

    assert (once, again) == ("", "")
    assert twice.startswith("the etcd member 10.0.0.3:2379 has not replied since 20")


@in_virtual_time
async def test_the_report_tells_how_many_more_losses_stop_writes() -> None:
    endings = [(await report(count, *lost))[0].partition(". ")[2] for count, lost in ((3, [0]), (5, [0]), (5, [0, 3]))]

    assert endings == [
        "With one more loss, etcd accepts no writes: start it again, or replace it",
        "With the loss of 2 more, etcd accepts no writes: start it again, or replace it",
        "With one more loss, etcd accepts no writes: start them again, or replace them",
    ]


@in_virtual_time
async def test_the_report_for_every_caller_names_no_address() -> None:
    named, unnamed = await report(5, 1, 2, reason="has known no leader")

    assert named.startswith("the etcd member 10.0.0.2:2379 has known no leader since ")
    assert "; the etcd member 10.0.0.3:2379 has known no leader since " in named
    assert unnamed.startswith("2 of 5 etcd members have not been usable since ")
    assert "10.0.0" not in unnamed


@pytest.mark.parametrize("count", [1, 2])
@in_virtual_time
async def test_an_etcd_that_accepts_no_writes_without_one_member_is_not_watched(count: int) -> None:
    members = ControlledMembers(count)
    watch, task = start_watch(members)
    await pass_time(CHECK_INTERVAL_S * 3)
    await cancel_tasks(task)

    assert members.checks == [0] * count
    assert watch.describe_problem(names_addresses=True) == ""
