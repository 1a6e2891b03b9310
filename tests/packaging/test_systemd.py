"""The unit for systemd: valid alone and with the file for machines without a node, and it starts what the pages install."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.packaging.wheels import ROOT

PROGRAM = "/opt/wharf/bin/wharf"


@pytest.mark.needs_program("systemd-analyze")
@pytest.mark.parametrize("drop_ins", [[], ["server-only.conf"]], ids=["node", "server-only"])
def test_systemd_accepts_the_unit(tmp_path: Path, drop_ins: list[str]) -> None:
    """The program is replaced by one that exists on this machine, because systemd checks that it does."""
    unit = tmp_path / "wharf.service"
    unit.write_text((ROOT / "packaging/wharf.service").read_text().replace(PROGRAM, "/bin/true"))
    (tmp_path / "wharf.service.d").mkdir()
    for name in drop_ins:
        (tmp_path / "wharf.service.d" / name).write_text((ROOT / "packaging" / name).read_text())

    process = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)

    assert (process.returncode, process.stdout, process.stderr) == (0, "", "")


def test_the_unit_starts_the_installed_program_with_the_folder_of_the_configuration() -> None:
    unit = (ROOT / "packaging/wharf.service").read_text()
    pages = [(ROOT / "docs" / page).read_text() for page in ("installing.md", "six-machines.md")]

    assert re.findall("^ExecStart=(.*)", unit, re.MULTILINE) == [f"{PROGRAM} agent --config /etc/wharf"]
    assert all("python3 -m venv /opt/wharf" in page for page in pages)
