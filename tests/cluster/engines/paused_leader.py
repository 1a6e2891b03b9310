"""A process that leads until a test pauses it: `python paused_leader.py ENDPOINT PREFIX TTL_S`.

Prints `leader VERSION` and waits for a line on its input. Then it tries to write as the leader, and prints the outcome
and whether its lease still seemed valid.
"""

import asyncio
import sys

from tests.cluster.engines.contract import a_write, commit, put, unchanged
from wharf.cluster.engines.etcd.engine import EtcdEngine
from wharf.cluster.engines.etcd.settings import EtcdSettings
from wharf.world import RealWorld


async def main() -> None:
    endpoint, prefix, ttl_s = sys.argv[1:]
    world = RealWorld()
    engine = EtcdEngine(EtcdSettings(endpoints=(endpoint,), prefix=prefix), world)
    await engine.open()
    lease = await engine.grant_lease(float(ttl_s))
    version = await commit(engine, put("leader", b"paused", table="leader"), lease=lease.id)
    print(f"leader {version}", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    was_valid = world.monotonic_s() < lease.get_valid_until_s()
    condition = unchanged("leader", version, table="leader")
    outcome = await engine.commit(a_write(put("state", b"by the paused leader"), conditions=[condition]))
    print(f"{type(outcome).__name__} {was_valid}", flush=True)
    await engine.close()


if __name__ == "__main__":
    asyncio.run(main())
