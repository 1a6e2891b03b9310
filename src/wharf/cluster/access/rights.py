"""The rights of a caller, compiled from its policies: checks for one namespace, path, pool or scope at a time.

Compiled rights are cached by the texts of the policies. A changed policy therefore takes effect with the next request,
and a restored server, or a second server in the same process, never gets rights of another state.
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
from wharf.contract.model.namespaces import ALL_NAMESPACES

_SUFFICIENT_LEVELS: Final = {
    PolicyLevel.LIST: frozenset({PolicyLevel.LIST, PolicyLevel.READ, PolicyLevel.WRITE}),
    PolicyLevel.READ: frozenset({PolicyLevel.READ, PolicyLevel.WRITE}),
    PolicyLevel.WRITE: frozenset({PolicyLevel.WRITE}),
}
_IMPLICIT_CAPABILITIES: Final = frozenset({VariableCapability.READ, VariableCapability.LIST})


class Rights:
    """The rights that a set of policies grants. Immutable; cached rights are shared by callers with the same policies."""

    __slots__ = ("_grants", "_host_volumes", "_implicit_paths", "_namespaces", "_node_pools", "_variable_namespaces", "_variables",
                 "is_management")  # fmt: skip

    def __init__(
        self, grants: PolicyGrants, *, is_management: bool = False, implicit: frozenset[tuple[str, str]] = frozenset()
    ) -> None:
        self.is_management = is_management
        self._grants = grants
        self._implicit_paths = implicit
        self._namespaces = LabelCapabilities(grants.namespaces)
        self._variables = LabelCapabilities(grants.variables)
        self._node_pools = LabelCapabilities(grants.node_pools)
        self._host_volumes = LabelCapabilities(grants.host_volumes)
        variable_namespaces = {
            label.partition(PATH_SEPARATOR)[0]: capabilities
            for label, capabilities in grants.variables.items()
            if _grants_any(capabilities)
        }
        self._variable_namespaces = LabelCapabilities(variable_namespaces)

    def with_implicit_paths(self, paths: frozenset[tuple[str, str]]) -> "Rights":
        """Return these rights plus those of a workload: reading the variables at these (namespace, path)."""
        return Rights(self._grants, is_management=self.is_management, implicit=paths)

    # -- namespaces ----------------------------------------------------------------------------------------------

    def allows_namespace(self, namespace: str, *any_of: Capability) -> bool:
        """Return whether one of these capabilities is granted in the namespace; with `*`, in any namespace."""
        if self.is_management:
            return True
        if namespace == ALL_NAMESPACES:
            return any(not capabilities.isdisjoint(any_of) for capabilities in self._namespaces.list_all())
        return not self._namespaces.find_capabilities(namespace).isdisjoint(any_of)

    def allows_any_in(self, namespace: str) -> bool:
        """Return whether any capability is granted in the namespace, even if only for a single variable."""
        if self.is_management:
            return True
        capabilities = self._namespaces.find_capabilities(namespace)
        return _grants_any(capabilities) or (
            DENY not in capabilities and self._variable_namespaces.has_match(namespace)
        )

    def build_namespace_filter(self, *any_of: Capability) -> Callable[[str], bool]:
        """Return a predicate: whether a list may show the records of a namespace."""
        return lambda namespace: self.allows_namespace(namespace, *any_of)

    # -- variables -----------------------------------------------------------------------------------------------

    def allows_variable(self, namespace: str, path: str, capability: VariableCapability) -> bool:
        """Return whether the capability is granted for a variable. The exact path decides, then the workload's own
        paths, then the closest glob."""
        if self.is_management:
            return True
        name = f"{namespace}{PATH_SEPARATOR}{path}"
        exact = self._variables.find_exact(name)
        if exact is not None:
            return capability in exact
        if capability in _IMPLICIT_CAPABILITIES and (namespace, path) in self._implicit_paths:
            return True
        return capability in (self._variables.find_closest_glob(name) or ())

    def allows_any_variable(self, capability: VariableCapability) -> bool:
        """Return whether the capability is granted for any path, so that a list of variables may have entries."""
        if self.is_management or (self._implicit_paths and capability in _IMPLICIT_CAPABILITIES):
            return True
        return any(capability in capabilities for capabilities in self._variables.list_all())

    # -- pools, volumes, levels ----------------------------------------------------------------------------------

    def allows_node_pool(self, pool: str, *any_of: NodePoolCapability) -> bool:
        """Return whether one of these capabilities is granted for the node pool."""
        return self.is_management or not self._node_pools.find_capabilities(pool).isdisjoint(any_of)

    def allows_host_volume(self, volume: str, *any_of: HostVolumeMountCapability) -> bool:
        """Return whether a job may use a host volume in one of these ways. The label is the name of the volume in the
        job."""
        return self.is_management or not self._host_volumes.find_capabilities(volume).isdisjoint(any_of)

    def allows_level(self, scope: PolicyScope, level: PolicyLevel) -> bool:
        """Return whether this level or a higher one is granted for the scope."""
        return self.is_management or self._grants.levels.get(scope) in _SUFFICIENT_LEVELS[level]

    def allows_operator(self, capability: OperatorCapability) -> bool:
        """Return whether the operator capability is granted."""
        return self.is_management or capability in self._grants.operator

    # -- needs ---------------------------------------------------------------------------------------------------

    def satisfies(self, permission: needs.Permission, *, namespace: str = "", path: str = "", label: str = "") -> bool:
        """Return whether these rights satisfy the permission for the given object. `label`: a node pool or a host
        volume."""
        match permission:
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

    def satisfies_anywhere(self, permission: needs.Permission) -> bool:
        """Return whether these rights satisfy the permission on at least one namespace, path, pool or volume.

        Used before the object of a request is known: a caller without the right anywhere is refused before the lookup.
        """
        if self.is_management:
            return True
        match permission:
            case needs.AnyNamespacePermission():
                capability_sets = (*self._namespaces.list_all(), *self._variable_namespaces.list_all())
                return any(_grants_any(capabilities) for capabilities in capability_sets)
            case needs.VariablePermission(capability):
                return self.allows_any_variable(capability)
            case needs.NodePoolPermission(capability):
                return any(capability in capabilities for capabilities in self._node_pools.list_all())
            case needs.HostVolumePermission(any_of):
                return any(not capabilities.isdisjoint(any_of) for capabilities in self._host_volumes.list_all())
            case needs.AllPermissions(parts):
                return all(self.satisfies_anywhere(part) for part in parts)
            case needs.AnyPermission(parts):
                return any(self.satisfies_anywhere(part) for part in parts)
            case _:
                return self.satisfies(permission, namespace=ALL_NAMESPACES)


def _grants_any(capabilities: Iterable[StrEnum]) -> bool:
    return any(capability != DENY for capability in capabilities)


NO_RIGHTS: Final = Rights(PolicyGrants())
ALL_RIGHTS: Final = Rights(PolicyGrants(), is_management=True)


MAX_CACHED_RIGHTS: Final = 1_000
MAX_CACHED_CHARACTERS: Final = 4_000_000
"""Limits the memory of the cache: compiled rights take a few times the size of their texts."""


class RightsNotCompiled(Exception):
    """The rights of these policies are not in the cache, and their texts are too large to compile on an event loop."""

    def __init__(self, texts: frozenset[str]) -> None:
        super().__init__("rights not compiled")
        self.texts = texts


class RightsCache:
    """The most recently used rights, limited in number and total size."""

    def __init__(self) -> None:
        self._cached: OrderedDict[frozenset[str], Rights] = OrderedDict()
        self._count_characters = 0

    def get(self, texts: Iterable[str], *, max_compiled_chars: int | None = None) -> Rights:
        """Return the rights that these policies grant together.

        Raises `RightsNotCompiled` if they are not cached and the policies have more than `max_compiled_chars`.
        """
        key = frozenset(texts)
        cached = self._cached.get(key)
        if cached is not None:
            self._cached.move_to_end(key)
            return cached
        if max_compiled_chars is not None and _count_characters(key) > max_compiled_chars:
            raise RightsNotCompiled(key)
        return self.put(key, compile_rights(key))

    def put(self, key: frozenset[str], rights: Rights) -> Rights:
        """Store the rights of these policies, evict those that were not used for the longest time, and return them."""
        if key in self._cached:
            return self._cached[key]
        self._cached[key] = rights
        self._count_characters += _count_characters(key)
        while len(self._cached) > 1 and (
            len(self._cached) > MAX_CACHED_RIGHTS or self._count_characters > MAX_CACHED_CHARACTERS
        ):
            oldest, _ = self._cached.popitem(last=False)
            self._count_characters -= _count_characters(oldest)
        return rights


def compile_rights(texts: Iterable[str]) -> Rights:
    """Compile the rights of these policies. An invalid text leaves no rights at all, because it is unknown what it
    would deny."""
    try:
        return Rights(merge_policies([parse_policy(text) for text in texts]))
    except InvalidPolicy:
        return NO_RIGHTS


def _count_characters(texts: frozenset[str]) -> int:
    return sum(map(len, texts))


_RIGHTS_CACHE: Final = RightsCache()


def get_rights(texts: Iterable[str], *, max_compiled_chars: int | None = None) -> Rights:
    """Return the cached rights that these policies grant together.

    Raises `RightsNotCompiled` if they are not cached and the policies have more than `max_compiled_chars`.
    """
    return _RIGHTS_CACHE.get(texts, max_compiled_chars=max_compiled_chars)


def store_rights(texts: frozenset[str], rights: Rights) -> None:
    """Store rights that `compile_rights` returned for these policies in the cache."""
    _RIGHTS_CACHE.put(texts, rights)
