"""The attributes that a node detects on its machine."""

from pathlib import Path

import pytest

from wharf.node.agent.fingerprint.machine import detect_cloud, probe_machine


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
