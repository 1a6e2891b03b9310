"""The list of namespaces and the page of one."""

from collections.abc import Sequence
from typing import Final

import msgspec

from wharf.contract.model.namespaces import AllowedNames, Namespace
from wharf.web.rendering import build_link
from wharf.web.views.field_errors import FormView
from wharf.web.views.listing import CutList, cut_list

UNDELETABLE: Final = "default"
FIELD_HINTS: Final = (
    ("invalid name", "name"),
    ("description", "description"),
    ("weight", "weight"),
    ("quota", "quota"),
)
"""Parts of the texts of mistakes, and their fields."""
NEW_NAMESPACE_FORM: Final = FormView({"weight": "1"})


class NamespaceRow(msgspec.Struct, frozen=True):
    """A namespace in the list."""

    name: str
    url: str
    description: str
    quota: str
    quota_url: str
    weight: int


class NamespaceListView(msgspec.Struct, frozen=True):
    """The list of namespaces, with the form that creates one."""

    list: CutList[NamespaceRow]
    form: FormView


class NamespaceView(msgspec.Struct, frozen=True):
    """The page of a namespace."""

    row: NamespaceRow
    facts: tuple[tuple[str, str], ...]
    links: tuple[tuple[str, str], ...]
    """What belongs to it: texts and addresses."""
    form: FormView
    is_deletable: bool


def build_namespace_list(namespaces: Sequence[Namespace], prefix: str) -> CutList[NamespaceRow]:
    """Return the list of namespaces."""
    return cut_list(namespaces, _build_row, prefix)


def _build_row(namespace: Namespace) -> NamespaceRow:
    return NamespaceRow(
        name=namespace.name,
        url=build_link("namespaces", namespace.name),
        description=namespace.description,
        quota=namespace.quota,
        quota_url=build_link("quotas", namespace.quota) if namespace.quota else "",
        weight=namespace.weight,
    )


def build_namespace_view(namespace: Namespace, refused: FormView | None = None) -> NamespaceView:
    """Return the page of a namespace. `refused`: its form, if it was refused."""
    name, capabilities = namespace.name, namespace.capabilities
    facts = []
    if capabilities is not None:
        facts += [
            ("Task drivers", _describe(capabilities.enabled_task_drivers, capabilities.disabled_task_drivers)),
            ("Network modes", _describe(capabilities.enabled_network_modes, capabilities.disabled_network_modes)),
        ]
    if namespace.node_pool_configuration is not None:
        facts.append(("Node pools", _describe_names(namespace.node_pool_configuration)))
    facts += [(f"Note: {key}", value) for key, value in sorted((namespace.meta or {}).items())]
    titles = (("jobs", "Jobs"), ("queue", "Waiting jobs"), ("services", "Services"), ("variables", "Variables"))
    return NamespaceView(
        row=_build_row(namespace),
        facts=tuple(facts),
        links=tuple((title, build_link(path, namespace=name)) for path, title in (*titles, ("volumes", "Volumes"))),
        form=refused if refused is not None else FormView(_list_values(namespace)),
        is_deletable=name != UNDELETABLE,
    )


def _list_values(namespace: Namespace) -> dict[str, str]:
    """Return the settings of a namespace as its form has them."""
    return {"description": namespace.description, "quota": namespace.quota, "weight": str(namespace.weight)}


def _describe(enabled: Sequence[str] | None, disabled: Sequence[str] | None) -> str:
    """Return which names are allowed."""
    parts = [f"only {', '.join(enabled)}"] if enabled else []
    parts += [f"not {', '.join(disabled)}"] if disabled else []
    return ", ".join(parts) or "all"


def _describe_names(names: AllowedNames) -> str:
    """Return which names jobs may choose, and which one they get without a choice."""
    default = f"{names.default} by default" if names.default else ""
    allowed = "no other" if names.allowed == () else _describe(names.allowed, names.denied)
    return ", ".join(part for part in (default, allowed) if part)
