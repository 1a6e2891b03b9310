"""Unmounting of what a killed node or a container engine left mounted in a test's folder."""

import subprocess
from pathlib import Path


def unmount_below(folder: Path) -> None:
    mounted = [line.split(" ")[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for path in reversed(mounted):  # Inner mounts were mounted later.
        if path.startswith(f"{folder}/"):
            subprocess.run(["umount", "--lazy", path], check=False, capture_output=True)
