"""Device plugins for tests: one whose devices are files, and one that returns invalid values.

Each file of a folder is a lamp; it is unhealthy if its content is `unhealthy`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from wharf.node.devices.port import (
    CannotReserve,
    DeviceGroup,
    DeviceMount,
    DeviceNode,
    Figure,
    Instance,
    InstanceFigures,
    Kind,
    Measure,
    Reserved,
)

DESK_LAMP = Kind("acme", "lamp", "desk")
STUCK_TORCH = Kind("acme", "torch", "stuck")
"""A device that is reported and cannot be reserved."""


class LampPlugin:
    """Devices that are files of the folder in the option `lamps.folder`."""

    name = "lamps"

    def __init__(self, options: Mapping[str, str]) -> None:
        self._folder = Path(options["lamps.folder"])

    async def fingerprint(self) -> Sequence[DeviceGroup]:
        lamps = [
            Instance(path.name, is_healthy=text != "unhealthy", why="it flickers" if text == "unhealthy" else "")
            for path in self._folder.iterdir()
            for text in (path.read_text().strip(),)
        ]
        return [
            DeviceGroup(DESK_LAMP, tuple(lamps), {"light": Measure(400, "MHz"), "maker": "acme", "dims": True}),
            DeviceGroup(STUCK_TORCH, (Instance("only"),)),
        ]

    async def reserve(self, kind: Kind, ids: Sequence[str]) -> Reserved:
        if kind == STUCK_TORCH:
            raise CannotReserve("its switch is stuck")
        return Reserved(
            {"LAMPS": ",".join(ids)},
            tuple(DeviceMount(str(self._folder / id), f"/lamps/{id}") for id in ids),
            (DeviceNode("/dev/null", "/dev/lamp", "rw"),),
        )

    async def measure(self) -> Mapping[Kind, Mapping[str, InstanceFigures]]:
        lamp = InstanceFigures(Figure(30, of=100, unit="lm", about="light"), {"warmth": Figure(2.5)})
        return {DESK_LAMP: {path.name: lamp for path in self._folder.iterdir()}}


class BrokenPlugin:
    """Returns invalid values or raises exceptions."""

    name = "broken"

    def __init__(self, _options: Mapping[str, str]) -> None:
        pass

    async def fingerprint(self) -> Sequence[DeviceGroup]:
        return [None]  # type: ignore[list-item]  # Violates the protocol.

    async def reserve(self, _kind: Kind, _ids: Sequence[str]) -> Reserved:
        raise ValueError("broken")

    async def measure(self) -> Mapping[Kind, Mapping[str, InstanceFigures]]:
        raise ValueError("broken")
