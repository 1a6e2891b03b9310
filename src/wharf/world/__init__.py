"""Access to time, randomness, new ids and task creation. No other package reads a clock or draws random numbers.

Code that needs them is passed a `World`. `RealWorld` uses the machine; `SimulatedWorld` is deterministic: it draws from a
seed and follows the virtual clock of a simulated event loop.
"""

from wharf.world.ports import World
from wharf.world.real import RealWorld
from wharf.world.simulated import SimulatedWorld

__all__ = ["RealWorld", "SimulatedWorld", "World"]
