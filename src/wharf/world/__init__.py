"""Access to the machine: time, randomness, new ids and task creation, and helpers for files, sockets and streams.

No other package reads a clock or draws random numbers. Code that needs them is passed a `World`. `RealWorld` uses the
machine; `SimulatedWorld` is deterministic: it draws from a seed and follows the virtual clock of a simulated event loop.
These classes are imported on first use, because small processes use only the helpers and need no asyncio.
"""

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from wharf.world.ports import World
    from wharf.world.real import RealWorld
    from wharf.world.simulated import SimulatedWorld

_MODULE_BY_NAME: Final = {"RealWorld": "real", "SimulatedWorld": "simulated", "World": "ports"}


def __getattr__(name: str) -> Any:  # The types are in the TYPE_CHECKING imports above.
    module = _MODULE_BY_NAME.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{module}"), name)


__all__ = ["RealWorld", "SimulatedWorld", "World"]
