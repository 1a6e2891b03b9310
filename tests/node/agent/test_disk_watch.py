"""A nearly full disk of a node is reported once, and so is its free space."""

from pathlib import Path

from wharf.node.agent.disk_watch import DiskWatch
from wharf.node.agent.servers.node_events import NodeEventQueue
from wharf.world import RealWorld
from wharf.world.disk_space import DiskSpace


def test_each_change_of_a_nearly_full_disk_is_one_event() -> None:
    events = NodeEventQueue(RealWorld())
    watch = DiskWatch([Path("/state"), Path("/alloc")], events)

    for available_mb in (300, 255, 100, 0, 256, 300):
        watch.handle(Path("/state"), DiskSpace(100 << 30, available_mb << 20, (available_mb + 1) << 20))
        watch.handle(Path("/alloc"), DiskSpace(100 << 30, 1 << 30, 1 << 30))

    assert [
        "The disk of /state is nearly full (255 MB free, 256 MB recommended): free some space before no task starts",
        "The disk of /state has free space again",
    ] == [event.message for event in events.pending_events or ()]
