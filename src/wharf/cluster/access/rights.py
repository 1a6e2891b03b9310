"""What somebody may do: asked about one namespace, path, pool or scope at a time, and answered yes or no.

Rights by the policies they come from. Rights hang on nothing but the texts, so the texts are what they are kept by.

So a policy that is written again changes the rights of everybody who has it with the next request, and a server that
is restored from a snapshot, or runs beside another in one process, can never be answered from the past of another.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Final

from wharf.cluster.access.policies.grants import PATH_SEPARATOR, PolicyGrants, merge_policies
from wharf.cluster.access.policies.labels import DENY, LabelCapabilities
from wharf.cluster.access.policies.parser import InvalidPolicy, parse_policy
from wharf.contract.model.acl import permissions as needs
from wharf.contract.model.acl.capabilities import (
    Capability,
    HostVolumeMountCapability,
    NodePoolCapability,
    OperatorCapability,
    PolicyLevel,
    PolicyScope,
    VariableCapability,
)

ALL_NAMESPACES: Final = "*"
"""In a request: all namespaces that the caller may see."""

_AT_LEAST: Final = {
    PolicyLevel.LIST: frozenset({PolicyLevel.LIST, PolicyLevel.READ, PolicyLevel.WRITE}),
    PolicyLevel.READ: frozenset({PolicyLevel.READ, PolicyLevel.WRITE}),
    PolicyLevel.WRITE: frozenset({PolicyLevel.WRITE}),
}
_IMPLICIT: Final = frozenset({VariableCapability.READ, VariableCapability.LIST})


class Rights:
    """Compiled from policies, and never changed. The same policies give the same object, as long as it is kept."""

    __slots__ = ("_grants", "_host_volumes", "_implicit", "_namespaces", "_node_pools", "_places", "_variables",
                 "is_management")  # fmt: skip

    def __init__(
        self, grants: PolicyGrants, *, is_management: bool = False, implicit: frozenset[tuple[str, str]] = frozenset()
    ) -> None:
        self.is_management = is_management
        self._grants = grants
        self._implicit = implicit
        self._namespaces = LabelCapabilities(grants.namespaces)
        self._variables = LabelCapabilities(grants.variables)
        self._node_pools = LabelCapabilities(grants.node_pools)
        self._host_volumes = LabelCapabilities(grants.host_volumes)
        places = {
            label.partition(PATH_SEPARATOR)[0]: found for label, found in grants.variables.items() if _grants_any(found)
        }
        self._places = LabelCapabilities(places)

    def with_implicit_paths(self, paths: frozenset[tuple[str, str]]) -> "Rights":
        """These and what a workload has by being itself: reading the variables at these (namespace, path)."""
        return Rights(self._grants, is_management=self.is_management, implicit=paths)

    # -- namespaces ----------------------------------------------------------------------------------------------

    def allows_namespace(self, namespace: str, *any_of: Capability) -> bool:
        """One of these in the namespace; in `*`, one of these in any."""
        if self.is_management:
            return True
        if namespace == ALL_NAMESPACES:
            return any(not found.isdisjoint(any_of) for found in self._namespaces.list_all())
        return not self._namespaces.find_capabilities(namespace).isdisjoint(any_of)

    def allows_any_in(self, namespace: str) -> bool:
        """Any right in the namespace, were it one to a single variable."""
        if self.is_management:
            return True
        found = self._namespaces.find_capabilities(namespace)
        return _grants_any(found) or (DENY not in found and self._places.has_match(namespace))

    def build_namespace_filter(self, *any_of: Capability) -> Callable[[str], bool]:
        """Which namespaces a list over all of them may show: asked for each record."""
        return lambda namespace: self.allows_namespace(namespace, *any_of)

    # -- variables -----------------------------------------------------------------------------------------------

    def allows_variable(self, namespace: str, path: str, capability: VariableCapability) -> bool:
        """The exact path decides, then what a workload has by being itself, then the closest glob."""
        if self.is_management:
            return True
        name = f"{namespace}{PATH_SEPARATOR}{path}"
        exact = self._variables.find_exact(name)
        if exact is not None:
            return capability in exact
        if capability in _IMPLICIT and (namespace, path) in self._implicit:
            return True
        return capability in (self._variables.find_closest_glob(name) or ())

    def allows_any_variable(self, capability: VariableCapability) -> bool:
        """For any path at all: whether a list of variables can hold anything."""
        if self.is_management or (self._implicit and capability in _IMPLICIT):
            return True
        return any(capability in found for found in self._variables.list_all())

    # -- pools, volumes, levels ----------------------------------------------------------------------------------

    def allows_node_pool(self, pool: str, *any_of: NodePoolCapability) -> bool:
        return self.is_management or not self._node_pools.find_capabilities(pool).isdisjoint(any_of)

    def allows_host_volume(self, volume: str, *any_of: HostVolumeMountCapability) -> bool:
        """What a job may do with a volume of a host; the label is the volume's name in the job."""
        return self.is_management or not self._host_volumes.find_capabilities(volume).isdisjoint(any_of)

    def allows_level(self, scope: PolicyScope, level: PolicyLevel) -> bool:
        """This level or a higher one: agent, node, operator, quota, plugin."""
        return self.is_management or self._grants.levels.get(scope) in _AT_LEAST[level]

    def allows_operator(self, capability: OperatorCapability) -> bool:
        return self.is_management or capability in self._grants.operator

    # -- needs ---------------------------------------------------------------------------------------------------

    def satisfies(self, need: needs.Permission, *, namespace: str = "", path: str = "", label: str = "") -> bool:
        """Whether these are what an operation needs, of what it is about. `label`: a node pool or a host volume."""
        match need:
            case needs.PublicAccess() | needs.AnyToken():
                return True
            case needs.ManagementToken():
                return self.is_management
            case needs.NamespacePermission(any_of):
                return self.allows_namespace(namespace, *any_of)
            case needs.AnyNamespacePermission():
                return self.allows_any_in(namespace)
            case needs.VariablePermission(capability):
                return self.allows_variable(namespace, path, capability)
            case needs.NodePoolPermission(capability):
                return self.allows_node_pool(label, capability)
            case needs.HostVolumePermission(any_of):
                return self.allows_host_volume(label, *any_of)
            case needs.LevelPermission(scope, level):
                return self.allows_level(scope, level)
            case needs.OperatorPermission(capability):
                return self.allows_operator(capability)
            case needs.AllPermissions(parts):
                return all(self.satisfies(part, namespace=namespace, path=path, label=label) for part in parts)
            case needs.AnyPermission(parts):
                return any(self.satisfies(part, namespace=namespace, path=path, label=label) for part in parts)

    def satisfies_anywhere(self, need: needs.Permission) -> bool:
        """Whether there is any namespace, path, pool or volume of which these are what is needed.

        For a request whose object decides: without a right anywhere it is refused before the object is looked for.
        """
        if self.is_management:
            return True
        match need:
            case needs.AnyNamespacePermission():
                anywhere = (*self._namespaces.list_all(), *self._places.list_all())
                return any(_grants_any(found) for found in anywhere)
            case needs.VariablePermission(capability):
                return self.allows_any_variable(capability)
            case needs.NodePoolPermission(capability):
                return any(capability in found for found in self._node_pools.list_all())
            case needs.HostVolumePermission(any_of):
                return any(not found.isdisjoint(any_of) for found in self._host_volumes.list_all())
            case needs.AllPermissions(parts):
                return all(self.satisfies_anywhere(part) for part in parts)
            case needs.AnyPermission(parts):
                return any(self.satisfies_anywhere(part) for part in parts)
            case _:
                return self.satisfies(need, namespace=ALL_NAMESPACES)


def _grants_any(found: Iterable[StrEnum]) -> bool:
    return any(capability != DENY for capability in found)


NO_RIGHTS: Final = Rights(PolicyGrants())
ALL_RIGHTS: Final = Rights(PolicyGrants(), is_management=True)


MAX_CACHED_RIGHTS: Final = 1_000
MAX_CACHED_CHARACTERS: Final = 4_000_000
"""What is kept weighs a few times its texts."""


class RightsCache:
    """The rights that were asked for last, up to a number and a weight."""

    def __init__(self) -> None:
        self._kept: OrderedDict[frozenset[str], Rights] = OrderedDict()
        self._weight = 0

    def get(self, texts: Iterable[str]) -> Rights:
        """The rights that these policies give together."""
        key = frozenset(texts)
        kept = self._kept.get(key)
        if kept is not None:
            self._kept.move_to_end(key)
            return kept
        made = compile_rights(key)
        self._kept[key] = made
        self._weight += _weight(key)
        while len(self._kept) > 1 and (len(self._kept) > MAX_CACHED_RIGHTS or self._weight > MAX_CACHED_CHARACTERS):
            oldest, _ = self._kept.popitem(last=False)
            self._weight -= _weight(oldest)
        return made


def compile_rights(texts: Iterable[str]) -> Rights:
    """The same, made anew. One text that cannot be read leaves no rights at all: nobody knows what it would deny."""
    try:
        return Rights(merge_policies([parse_policy(text) for text in texts]))
    except InvalidPolicy:
        return NO_RIGHTS


def _weight(texts: frozenset[str]) -> int:
    return sum(map(len, texts))


_COMPILED: Final = RightsCache()


def get_rights(texts: Iterable[str]) -> Rights:
    """The rights that these policies give together, kept for the next who has the same."""
    return _COMPILED.get(texts)
