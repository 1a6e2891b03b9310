"""A plugin for devices that are files: each in a folder is a lamp, which is ill when it says so."""

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

DESK = Kind("acme", "lamp", "desk")
STUCK = Kind("acme", "torch", "stuck")
"""One that is told of as well, and cannot be used."""


class Lamps:
    name = "lamps"

    def __init__(self, options: Mapping[str, str]) -> None:
        self._folder = Path(options["lamps.folder"])

    async def fingerprint(self) -> Sequence[DeviceGroup]:
        lamps = [
            Instance(path.name, is_healthy=text != "ill", why="it flickers" if text == "ill" else "")
            for path in self._folder.iterdir()
            for text in (path.read_text().strip(),)
        ]
        return [
            DeviceGroup(DESK, tuple(lamps), {"light": Measure(400, "MHz"), "maker": "acme", "dims": True}),
            DeviceGroup(STUCK, (Instance("only"),)),
        ]

    async def reserve(self, kind: Kind, ids: Sequence[str]) -> Reserved:
        if kind == STUCK:
            raise CannotReserve("its switch is stuck")
        return Reserved(
            {"LAMPS": ",".join(ids)},
            tuple(DeviceMount(str(self._folder / id), f"/lamps/{id}") for id in ids),
            (DeviceNode("/dev/null", "/dev/lamp", "rw"),),
        )

    async def measure(self) -> Mapping[Kind, Mapping[str, InstanceFigures]]:
        lamp = InstanceFigures(Figure(30, of=100, unit="lm", about="light"), {"warmth": Figure(2.5)})
        return {DESK: {path.name: lamp for path in self._folder.iterdir()}}


class Broken:
    """All that it is asked it answers with something else."""

    name = "broken"

    def __init__(self, _options: Mapping[str, str]) -> None:
        pass

    async def fingerprint(self) -> Sequence[DeviceGroup]:
        return [None]  # type: ignore[list-item]  # It does not keep to the protocol.

    async def reserve(self, _kind: Kind, _ids: Sequence[str]) -> Reserved:
        raise ValueError("never")

    async def measure(self) -> Mapping[Kind, Mapping[str, InstanceFigures]]:
        raise ValueError("never")
