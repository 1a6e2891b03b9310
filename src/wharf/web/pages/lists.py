"""Fetches one page of a list of the API."""

import re
import shlex
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeVar
from urllib.parse import urlencode

from wharf.contract.client.calls import Response
from wharf.contract.client.errors import InvalidRequest
from wharf.web.page import PageRequest, Redirect
from wharf.web.rendering import build_link, quote_for_filter
from wharf.web.views.listing import ListView, build_list_view, read_page_size
from wharf.web.visitors import SIGN_IN_FIRST_TEXT

R = TypeVar("R")


async def fetch_list(
    request: PageRequest,
    path: tuple[str, ...],
    list_records: Callable[..., Any],  # A list method of the client.
    build_row: Callable[[Any], R],  # Takes the type of record that the method lists.
    searched: tuple[str, ...] = (),
    *,
    can_go_back: bool = True,
    **fixed_options: Any,
) -> ListView[R] | Redirect:
    """Return the page of the list that the address names. A filter that the API refuses is an error beside the filter.

    A filter without an operator is searched in the fields `searched`, such as `Name`.

    The address of the previous page has the token `before`: the list is read backwards to find where that page begins.
    `can_go_back`: whether the API lists backwards.
    """
    per_page = read_page_size(request.query)
    options = {
        "filter": expand_filter(request.query.get("filter", ""), searched),
        "prefix": request.query.get("prefix", ""),
        **fixed_options,
    }
    if can_go_back and (before := request.query.get("before")):
        parameters = {name: value for name, value in request.query.items() if name not in ("before", "token")}
        token = await _find_previous_token(partial(list_records, **options, next_token=before, reverse=True), per_page)
        return Redirect(build_link(*path, **parameters, token=token))
    try:
        reply: Response[list[Any]] = await list_records(
            **options, per_page=per_page, next_token=request.query.get("token", "")
        )
    except InvalidRequest as refusal:
        if not request.query.get("filter"):
            raise
        return build_list_view(
            path, request.query, (), next_token="", error=describe_filter_error(refusal.text, searched)
        )
    rows = tuple(build_row(record) for record in reply.value)
    return build_list_view(path, request.query, rows, next_token=reply.next_token, can_go_back=can_go_back)


async def _find_previous_token(list_backwards: Callable[..., Any], per_page: int) -> str:
    """Return the token of the page before the one at which the list is read backwards; empty if it is the first page."""
    with_one_more: Response[list[Any]] = await list_backwards(per_page=per_page + 1)
    if not with_one_more.next_token:
        return ""
    exactly: Response[list[Any]] = await list_backwards(per_page=per_page)
    return exactly.next_token


def expand_filter(text: str, searched: tuple[str, ...]) -> str:
    """Return the filter for the API. A plain text, such as `shop`, stands for all records that contain it in one of the fields."""
    if not text or not searched or not PLAIN_TEXT.fullmatch(text.strip()):
        return text
    return " or ".join(f"{field} contains {quote_for_filter(text.strip())}" for field in searched)


def describe_filter_error(text: str, searched: tuple[str, ...]) -> str:
    """Return why the API refused a filter, without the words of its parts, and what a plain text does."""
    reason = text.rpartition(FILTER_ERROR)[2].strip()
    if unknown := UNKNOWN_FIELD.search(reason):
        fields, suggestion = unknown["fields"], unknown["suggestion"]
        known = f"its fields are {fields}" if fields else f"did you mean {suggestion}?"
        reason = f"{unknown['kind']} has no field {unknown['name']}; {known}"
    advice = "\nA text without operators finds all names that contain it." if searched else ""
    return f"The filter is not valid: {reason}{advice}"


PLAIN_TEXT: Final = re.compile(r"[^\s\"'`=!()<>]+")
"""One word, which is no expression."""
UNKNOWN_FIELD: Final = re.compile(
    r'struct field with name "(?P<name>[^"]*)" in (?P<kind>\w+)(?:; did you mean "(?P<suggestion>[^"]*)"\?|; the fields are (?P<fields>.*))'
)
"""What the API says about a filter with a field that the records do not have."""
FILTER_ERROR: Final = "failed to read filter expression:"


def build_list_path(
    path: str, request: PageRequest, searched: tuple[str, ...] = (), *, has_namespace: bool = False, **fixed: str
) -> str:
    """Return the request of the API that returns the list which the address of the page names.

    `searched` are the fields in which the page searches a plain text, and `fixed` further parameters.
    """
    query = {"namespace": request.listed_namespace} if has_namespace else {}
    chosen = {name: request.query[name] for name in LIST_OPTIONS if request.query.get(name)}
    if "filter" in chosen:
        chosen["filter"] = expand_filter(chosen["filter"], searched)
    query |= chosen | fixed
    return f"{path}?{urlencode(query, safe='*')}" if query else path


def build_list_command(command: str, request: PageRequest, searched: tuple[str, ...] = ()) -> str:
    """Return the command that lists the same, with the namespace and the filter of the page."""
    namespace, expression = request.query.get("namespace", ""), request.query.get("filter", "")
    option = f" -namespace {shlex.quote(namespace)}" if namespace else ""
    return f"{command}{option}" + (
        f" --filter {shlex.quote(expand_filter(expression, searched))}" if expression else ""
    )


LIST_OPTIONS: Final = ("filter", "prefix", "sort")


def find_sign_in(request: PageRequest, *, has_rows: bool) -> Redirect | None:
    """Return the way to the sign-in if a list may be empty only because nobody is signed in."""
    if has_rows or not request.visitor.can_sign_in or request.visitor.is_signed_in:
        return None
    target = f"{request.path}?{urlencode(request.query)}" if request.query else request.path
    return Redirect(f"/ui/sign-in?{urlencode({'next': target})}", SIGN_IN_FIRST_TEXT)
