"""What a node measures of its machine, for people."""

from collections.abc import Mapping
from typing import Any, Final

from wharf.cli.drawing import drawn
from wharf.cli.tables import bar, section

GB: Final = 1 << 30
HISTORY: Final = "5m"


def figures_told(figures: Mapping[str, Any]) -> str:
    """As a section of a page."""
    memory, disk, past = figures["Memory"], figures["AllocDirStats"], figures.get("History") or ()
    cpus = figures["CPU"]
    percent = sum(cpu["TotalPercent"] for cpu in cpus) / max(1, len(cpus))
    lines = [
        f"{'CPU':<9}{bar(round(percent), 100)}  {percent:.0f} % of {len(cpus)}  {drawn([one['Percent'] for one in past], top=100)}",
        f"{'Memory':<9}{bar(memory['Used'], memory['Total'])}  {memory['Used'] / GB:.1f}/{memory['Total'] / GB:.1f} GB  "
        + drawn([one["Memory"] for one in past], top=float(memory["Total"])),
        f"{'Disk':<9}{bar(disk['Used'], disk['Size'])}  {disk['Used'] / GB:.1f}/{disk['Size'] / GB:.1f} GB  "
        f"{disk['InodesUsedPercent']:.0f} % of inodes",
    ]
    return section(f"In use, and in the last {HISTORY}", "\n".join(line.rstrip() for line in lines))
