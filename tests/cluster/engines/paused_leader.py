"""A process that leads, for a test that stops it: `python paused_leader.py ENDPOINT PREFIX TTL_S`.

Says `leader VERSION`, waits for a line on its input, then tries to write as the leader that it was and says how that
went, and whether it still believed in its lease.
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
