"""The list of variables and the page of one."""

from typing import Final

import msgspec

from wharf.contract.wire.variables import VariableView
from wharf.web.rendering import build_link, format_age

MAX_EDITED_ITEMS: Final = 50
"""A form has two fields for each item, and `forms.MAX_FORM_FIELDS` limits them."""


class VariableRow(msgspec.Struct, frozen=True):
    """A variable in the list, without its values."""

    path: str
    url: str
    namespace: str
    is_locked: bool
    age: str
    changed_ns: int


class VariablePageView(msgspec.Struct, frozen=True):
    """The page of a variable."""

    row: VariableRow
    values_url: str
    delete_url: str
    has_values: bool
    """Whether the values were requested."""
    items: tuple[tuple[str, str], ...]
    index: int
    """The index of the variable that the page shows: a form is refused if the variable has changed since."""
    is_editable: bool
    """Whether the page has a form for the values: not if they are too many."""


def build_variable_row(variable: VariableView, now_ns: int) -> VariableRow:
    """Return a variable as the list shows it."""
    return VariableRow(
        path=variable.path,
        url=build_link("variables", variable.path, namespace=variable.namespace),
        namespace=variable.namespace,
        is_locked=variable.lock is not msgspec.UNSET,
        age=format_age(variable.modify_time, now_ns),
        changed_ns=variable.modify_time,
    )


def build_variable_view(variable: VariableView, now_ns: int) -> VariablePageView:
    """Return the page of a variable, with its values if the API returned them."""
    items = {} if variable.items is msgspec.UNSET else variable.items
    return VariablePageView(
        row=build_variable_row(variable, now_ns),
        values_url=build_link("variables", variable.path, "values", namespace=variable.namespace),
        delete_url=build_link("variables", variable.path, "delete", namespace=variable.namespace),
        has_values=variable.items is not msgspec.UNSET,
        items=tuple(sorted(items.items())),
        index=variable.modify_index,
        is_editable=len(items) <= MAX_EDITED_ITEMS,
    )
