"""Time, chance, ids and the start of tasks: the only door through which they enter.

Everything else takes a `World` or the values that it gave. `RealWorld` asks the machine, `SimulatedWorld` gives the
same from a seed, under an event loop whose clock is virtual.
"""

from wharf.world.ports import World
from wharf.world.real import RealWorld
from wharf.world.simulated import SimulatedWorld

__all__ = ["RealWorld", "SimulatedWorld", "World"]
