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
DEEDS = ("kill one", "kill the leader", "kill all", "freeze one", "freeze the leader", "compact", "close a door")


async def ill_treat(
    deed: str, random: Random, cluster: EtcdCluster, workload: Workload, doors: list[EtcdEngine]
) -> None:
    victim = cluster.leader() if "leader" in deed else random.choice(cluster.members)
    match deed.split()[0]:
        case "kill" if deed == "kill all":
            cluster.kill()
            await asyncio.to_thread(cluster.start)
        case "kill":
            victim.kill()
            await workload.until_written(20, within_s=60.0)
            await asyncio.to_thread(cluster.start, victim)
        case "freeze":
            victim.pause()
            try:
                await workload.until_written(20, within_s=60.0)
            finally:
                victim.resume()
        case "compact":
            try:
                await doors[0].compact(await doors[0].barrier() - random.randint(0, 50))
            except LogUnavailable:
                return
        case "close":
            # The last engine serves only a follower, which must recover.
            await doors[-1].close()
            await workload.until_written(20, within_s=60.0)
            await doors[-1].open()


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_faults_of_three_etcd_members_lose_and_repeat_no_write(seed: int, tmp_path: Path) -> None:
    async def rounds(cluster: EtcdCluster) -> None:
        random = Random(seed)
        doors: list[EtcdEngine] = []
        for number in range(4):
            turn = number % 3
            endpoints = (*cluster.endpoints[turn:], *cluster.endpoints[:turn])
            doors.append(EtcdEngine(EtcdSettings(endpoints=endpoints, request_timeout_s=2.0), RealWorld()))
            await doors[-1].open()
        try:
            async with Workload([*doors[:3], *doors[:3]], doors) as workload:
                await workload.until_written(50)
                for number in range(ROUNDS):
                    deed = random.choice(DEEDS)
                    print(f"round {number}: {deed}, {workload.acknowledged()} writes so far")
                    await ill_treat(deed, random, cluster, workload, doors)
                    await workload.until_written(20, within_s=60.0)
                await workload.prove()
                print(f"{sum(writer.unknown for writer in workload.writers)} replies were lost")
        finally:
            for door in doors:
                await door.close()

    with running_etcd(tmp_path / "etcd", members=3) as cluster:
        asyncio.run(rounds(cluster))
