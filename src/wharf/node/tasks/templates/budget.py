"""What the rendering of one task's templates may use, and how the errors name these limits."""

from collections.abc import Sequence
from typing import Final

import msgspec

MAX_RENDER_CPU_S: Final = 10
"""CPU time of all templates of one task together; protects the CPU of the node. Usual templates take milliseconds."""
MAX_RENDER_MEMORY_BYTES: Final = 512 << 20
"""Memory of one rendering process beyond its program; protects the memory of the node."""
MAX_RENDER_WALL_S: Final = 120.0
"""How long a rendering may take, also while the machine is busy or a file cannot be read."""


class RenderBudget(msgspec.Struct, frozen=True):
    """The limits of one rendering of all templates of a task."""

    cpu_s: int = MAX_RENDER_CPU_S
    memory_bytes: int = MAX_RENDER_MEMORY_BYTES
    wall_s: float = MAX_RENDER_WALL_S

    def to_arguments(self) -> list[str]:
        """Return the limits as arguments of the rendering process."""
        return [str(self.cpu_s), str(self.memory_bytes), str(self.wall_s)]

    @classmethod
    def from_arguments(cls, arguments: Sequence[str]) -> "RenderBudget":
        """Return the limits that `to_arguments` has written."""
        cpu_s, memory_bytes, wall_s = arguments
        return cls(int(cpu_s), int(memory_bytes), float(wall_s))

    def describe_cpu(self) -> str:
        """Return the error of templates that use too much CPU time."""
        return f"rendering takes more than {self.cpu_s} s of CPU time"

    def describe_memory(self) -> str:
        """Return the error of templates that use too much memory."""
        return f"rendering needs more than {self.memory_bytes >> 20:,} MiB of memory"

    def describe_wall(self) -> str:
        """Return the error of templates that take too long."""
        return f"rendering takes more than {self.wall_s:g} s"
