"""What somebody may do: asked about one namespace, path, pool or scope at a time, and answered yes or no."""

from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Final

from wharf.access.grants import PATH_MARK, Grants
from wharf.access.labels import DENY, Labels
from wharf.model import need as needs
from wharf.model.capability import (
    Capability,
    HostVolumeCapability,
    Level,
    OperatorCapability,
    PoolCapability,
    Scope,
    VariableCapability,
)

EVERY_NAMESPACE: Final = "*"
"""In a request: all namespaces that the caller may see."""

_AT_LEAST: Final = {
    Level.LIST: frozenset({Level.LIST, Level.READ, Level.WRITE}),
    Level.READ: frozenset({Level.READ, Level.WRITE}),
    Level.WRITE: frozenset({Level.WRITE}),
}
_IMPLICIT: Final = frozenset({VariableCapability.READ, VariableCapability.LIST})


class Rights:
    """Compiled from policies, and never changed. The same policies give the same object, as long as it is kept."""

    __slots__ = ("_grants", "_host_volumes", "_implicit", "_namespaces", "_node_pools", "_places", "_variables",
                 "is_management")  # fmt: skip

    def __init__(
        self, grants: Grants, *, is_management: bool = False, implicit: frozenset[tuple[str, str]] = frozenset()
    ) -> None:
        self.is_management = is_management
        self._grants = grants
        self._implicit = implicit
        self._namespaces = Labels(grants.namespaces)
        self._variables = Labels(grants.variables)
        self._node_pools = Labels(grants.node_pools)
        self._host_volumes = Labels(grants.host_volumes)
        places = {
            label.partition(PATH_MARK)[0]: found for label, found in grants.variables.items() if _grants_any(found)
        }
        self._places = Labels(places)

    def with_implicit(self, paths: frozenset[tuple[str, str]]) -> "Rights":
        """These and what a workload has by being itself: reading the variables at these (namespace, path)."""
        return Rights(self._grants, is_management=self.is_management, implicit=paths)

    # -- namespaces ----------------------------------------------------------------------------------------------

    def allows_namespace(self, namespace: str, *any_of: Capability) -> bool:
        """One of these in the namespace; in `*`, one of these in any."""
        if self.is_management:
            return True
        if namespace == EVERY_NAMESPACE:
            return any(not found.isdisjoint(any_of) for found in self._namespaces.anywhere())
        return not self._namespaces.of(namespace).isdisjoint(any_of)

    def allows_any_in(self, namespace: str) -> bool:
        """Any right in the namespace, were it one to a single variable."""
        if self.is_management:
            return True
        found = self._namespaces.of(namespace)
        return _grants_any(found) or (DENY not in found and self._places.is_about(namespace))

    def namespaces_with(self, *any_of: Capability) -> Callable[[str], bool]:
        """Which namespaces a list over all of them may show: asked for each record."""
        return lambda namespace: self.allows_namespace(namespace, *any_of)

    # -- variables -----------------------------------------------------------------------------------------------

    def allows_variable(self, namespace: str, path: str, capability: VariableCapability) -> bool:
        """The exact path decides, then what a workload has by being itself, then the closest glob."""
        if self.is_management:
            return True
        name = f"{namespace}{PATH_MARK}{path}"
        exact = self._variables.exact(name)
        if exact is not None:
            return capability in exact
        if capability in _IMPLICIT and (namespace, path) in self._implicit:
            return True
        return capability in (self._variables.closest_glob(name) or ())

    def allows_any_variable(self, capability: VariableCapability) -> bool:
        """For any path at all: whether a list of variables can hold anything."""
        if self.is_management or (self._implicit and capability in _IMPLICIT):
            return True
        return any(capability in found for found in self._variables.anywhere())

    # -- pools, volumes, levels ----------------------------------------------------------------------------------

    def allows_node_pool(self, pool: str, *any_of: PoolCapability) -> bool:
        return self.is_management or not self._node_pools.of(pool).isdisjoint(any_of)

    def allows_host_volume(self, volume: str, *any_of: HostVolumeCapability) -> bool:
        """What a job may do with a volume of a host; the label is the volume's name in the job."""
        return self.is_management or not self._host_volumes.of(volume).isdisjoint(any_of)

    def allows_level(self, scope: Scope, level: Level) -> bool:
        """This level or a higher one: agent, node, operator, quota, plugin."""
        return self.is_management or self._grants.levels.get(scope) in _AT_LEAST[level]

    def allows_operator(self, capability: OperatorCapability) -> bool:
        return self.is_management or capability in self._grants.operator

    # -- needs ---------------------------------------------------------------------------------------------------

    def meet(self, need: needs.Need, *, namespace: str = "", path: str = "", label: str = "") -> bool:
        """Whether these are what an operation needs, of what it is about. `label`: a node pool or a host volume."""
        match need:
            case needs.Nothing() | needs.AnyToken():
                return True
            case needs.Management():
                return self.is_management
            case needs.InNamespace(any_of):
                return self.allows_namespace(namespace, *any_of)
            case needs.InSightOfNamespace():
                return self.allows_any_in(namespace)
            case needs.OnVariable(capability):
                return self.allows_variable(namespace, path, capability)
            case needs.OnPool(capability):
                return self.allows_node_pool(label, capability)
            case needs.OnHostVolume(any_of):
                return self.allows_host_volume(label, *any_of)
            case needs.OfLevel(scope, level):
                return self.allows_level(scope, level)
            case needs.OfOperator(capability):
                return self.allows_operator(capability)
            case needs.Both(parts):
                return all(self.meet(part, namespace=namespace, path=path, label=label) for part in parts)
            case needs.Either(parts):
                return any(self.meet(part, namespace=namespace, path=path, label=label) for part in parts)

    def meet_somewhere(self, need: needs.Need) -> bool:
        """Whether there is any namespace, path, pool or volume of which these are what is needed.

        For a request whose object decides: without a right anywhere it is refused before the object is looked for.
        """
        if self.is_management:
            return True
        match need:
            case needs.InSightOfNamespace():
                anywhere = (*self._namespaces.anywhere(), *self._places.anywhere())
                return any(_grants_any(found) for found in anywhere)
            case needs.OnVariable(capability):
                return self.allows_any_variable(capability)
            case needs.OnPool(capability):
                return any(capability in found for found in self._node_pools.anywhere())
            case needs.OnHostVolume(any_of):
                return any(not found.isdisjoint(any_of) for found in self._host_volumes.anywhere())
            case needs.Both(parts):
                return all(self.meet_somewhere(part) for part in parts)
            case needs.Either(parts):
                return any(self.meet_somewhere(part) for part in parts)
            case _:
                return self.meet(need, namespace=EVERY_NAMESPACE)


def _grants_any(found: Iterable[StrEnum]) -> bool:
    return any(capability != DENY for capability in found)


NO_RIGHTS: Final = Rights(Grants())
EVERY_RIGHT: Final = Rights(Grants(), is_management=True)
