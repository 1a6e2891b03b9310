"""The attributes that a node detects on its machine."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from wharf.contract.model.nodes.resources import NodeDisk
from wharf.node.agent.fingerprint.machine import (
    DISK_SIZE_ATTRIBUTE,
    MachineInfo,
    detect_cloud,
    merge_machine_info,
    probe_machine,
)


@pytest.mark.parametrize(
    ("firmware", "cloud"),
    [
        ({"sys_vendor": "Amazon EC2"}, "aws"),
        ({"sys_vendor": "Google", "product_name": "Google Compute Engine"}, "gce"),
        (
            {"sys_vendor": "Microsoft Corporation", "chassis_asset_tag": "7783-7084-3265-9085-8269-3286-77"},
            "azure",
        ),
        ({"sys_vendor": "Microsoft Corporation"}, ""),
        ({"sys_vendor": "DigitalOcean"}, "digitalocean"),
        ({}, ""),
    ],
)
def test_a_cloud_is_detected_by_the_firmware_of_the_machine(
    tmp_path: Path, firmware: dict[str, str], cloud: str
) -> None:
    for name, value in firmware.items():
        (tmp_path / name).write_text(f"{value}\n")

    assert cloud == detect_cloud(tmp_path)


def test_the_cores_of_each_numa_node_are_reported(tmp_path: Path) -> None:
    attributes = probe_machine(tmp_path).attributes
    cores = [attributes.get(f"numa.node{number}.cores", "") for number in range(int(attributes["numa.node.count"]))]

    assert all(cores)


@pytest.mark.parametrize(
    ("free_mb", "expected_mb"),
    [(0, 500), (450, 500), (590, 500), (620, 620)],
    ids=["less space", "a little less space", "a little more space", "much more space"],
)
def test_the_capacity_of_the_disk_follows_free_space_only_if_much_becomes_free(
    tmp_path: Path, free_mb: int, expected_mb: int
) -> None:
    def with_disk(free_mb: int) -> MachineInfo:
        """Return the info of this machine with a disk of 1,000 MB."""
        attributes = {**machine.attributes, DISK_SIZE_ATTRIBUTE: str(1_000 << 20)}
        return replace(
            machine, attributes=attributes, resources=replace(machine.resources, disk=NodeDisk(disk_mb=free_mb))
        )

    machine = probe_machine(tmp_path)

    assert expected_mb == merge_machine_info(with_disk(500), with_disk(free_mb)).resources.disk.disk_mb
