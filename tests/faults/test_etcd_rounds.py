"""The long fault test of etcd: many rounds of faults in three members under load, in a seeded order."""

import asyncio
import os
from pathlib import Path
from random import Random

import pytest

from tests.cluster.engines.etcd_server import EtcdCluster, running_etcd
from tests.cluster.engines.workload import Workload
from wharf.cluster.engines.etcd.engine import EtcdEngine
from wharf.cluster.engines.etcd.settings import EtcdSettings
from wharf.cluster.engines.port import LogUnavailable
from wharf.world import RealWorld

pytestmark = [pytest.mark.faults, pytest.mark.needs_program("etcd")]

ROUNDS = int(os.environ.get("FAULT_ROUNDS", "30"))
FAULTS = ("kill one", "kill the leader", "kill all", "freeze one", "freeze the leader", "compact", "close an engine")


async def inject_fault(
    action: str, random: Random, cluster: EtcdCluster, workload: Workload, engines: list[EtcdEngine]
) -> None:
    member = cluster.leader() if "leader" in action else random.choice(cluster.members)
    match action.split()[0]:
        case "kill" if action == "kill all":
            cluster.kill()
            await asyncio.to_thread(cluster.start)
        case "kill":
            member.kill()
            await workload.wait_for_writes(20, within_s=60.0)
            await asyncio.to_thread(cluster.start, member)
        case "freeze":
            member.pause()
            try:
                await workload.wait_for_writes(20, within_s=60.0)
            finally:
                member.resume()
        case "compact":
            try:
                await engines[0].compact(await engines[0].barrier() - random.randint(0, 50))
            except LogUnavailable:
                return
        case "close":
            # The last engine serves only a follower, which must recover.
            await engines[-1].close()
            await workload.wait_for_writes(20, within_s=60.0)
            await engines[-1].open()


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_faults_of_three_etcd_members_lose_and_repeat_no_write(seed: int, tmp_path: Path) -> None:
    async def rounds(cluster: EtcdCluster) -> None:
        random = Random(seed)
        engines: list[EtcdEngine] = []
        for number in range(4):
            offset = number % 3
            endpoints = (*cluster.endpoints[offset:], *cluster.endpoints[:offset])
            engines.append(EtcdEngine(EtcdSettings(endpoints=endpoints, request_timeout_s=2.0), RealWorld()))
            await engines[-1].open()
        try:
            async with Workload([*engines[:3], *engines[:3]], engines) as workload:
                await workload.wait_for_writes(50)
                for number in range(ROUNDS):
                    action = random.choice(FAULTS)
                    print(f"round {number}: {action}, {workload.acknowledged()} writes so far")
                    await inject_fault(action, random, cluster, workload, engines)
                    await workload.wait_for_writes(20, within_s=60.0)
                await workload.stop_and_check()
                print(f"{sum(writer.unknown for writer in workload.writers)} replies were lost")
        finally:
            for engine in engines:
                await engine.close()

    with running_etcd(tmp_path / "etcd", members=3) as cluster:
        asyncio.run(rounds(cluster))
