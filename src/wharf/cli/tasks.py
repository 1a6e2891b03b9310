"""Which task of an allocation is meant."""

from typing import TYPE_CHECKING

from wharf.cli.failing import Failed

if TYPE_CHECKING:
    from wharf.model.allocation import AllocationStub


def task_names(found: "AllocationStub") -> list[str]:
    return sorted(found.task_states or {})


def the_task(found: "AllocationStub", given: str) -> str:
    """The one that is named, or the only one there is. Raises Failed."""
    names = task_names(found)
    if given:
        if names and given not in names:
            raise Failed(f"{found.name} has no task {given}; it has {', '.join(names)}")
        return given
    if len(names) == 1:
        return names[0]
    if not names:
        raise Failed(f"{found.name} has no tasks yet: its node has not begun it")
    raise Failed(f"{found.name} has {len(names)} tasks: say which of {', '.join(names)}")
