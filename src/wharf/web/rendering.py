"""Templates to HTML. A name that a template uses and the view lacks is an error, and all values are escaped."""

import functools
import re
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote, urlencode

import jinja2
from jinja2 import nodes
from markupsafe import Markup, escape

from wharf.contract.model.times import SECOND, format_rounded_duration
from wharf.web.static_files import load_static_files


def render(template: str, **values: Any) -> str:
    """Return the HTML of a template."""
    return get_environment().get_template(template).render(values)


@functools.cache
def get_environment() -> jinja2.Environment:
    """Return the environment of all templates. It compiles each template once."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("wharf.web"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.globals |= {"static": load_static_files().get_url, "link": build_link}
    environment.filters |= {
        "segment": quote_segment,
        "moment": format_moment,
        "clock": format_clock,
        "count": format_count,
        "marked": mark_code,
    }
    return environment


@functools.cache
def list_operations(template: str) -> tuple[str, ...]:
    """Return the endpoints that a template passes to `may`, such as `job.scale`: it shows their forms to those who may use them."""
    environment = get_environment()
    assert environment.loader is not None, "the environment has a loader"
    source = environment.loader.get_source(environment, template)[0]
    calls = environment.parse(source).find_all(nodes.Call)
    arguments = [call.args[0] for call in calls if isinstance(call.node, nodes.Name) and call.node.name == "may"]
    return tuple(dict.fromkeys(argument.as_const() for argument in arguments))


UUID: Final = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
MIN_SHORT_ID: Final = re.compile(r"[0-9a-f]{8}[0-9a-f-]*")
"""The beginning of an ID as commands and pages print it."""


def quote_segment(text: str) -> str:
    """Return a text as one segment of a path."""
    return quote(text, safe="")


def quote_for_filter(text: str) -> str:
    """Return a text as a value of the filter language."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def build_link(*segments: str, **query: str | int | None) -> str:
    """Return the address of a page below `/ui`. Query values that are empty or `None` are left out."""
    path = "/".join(("/ui", *(quote_segment(segment) for segment in segments)))
    parameters = {name: value for name, value in query.items() if value not in (None, "")}
    return f"{path}?{urlencode(parameters)}" if parameters else path


def split_clauses(text: str) -> tuple[str, ...]:
    """Return the clauses of a sentence that semicolons separate, without those in parentheses."""
    clauses, depth, start = [], 0, 0
    for place, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if character == ";" and depth <= 0 and text[place + 1 : place + 2] == " ":
            clauses.append(text[start:place])
            start = place + 2
    return tuple(clause for clause in (*clauses, text[start:]) if clause.strip())


def mark_code(text: str) -> Markup:
    """Return a text as HTML in which parts between backticks, such as commands, are code."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        return escape(text)  # A backtick without a partner.
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if position % 2 else escape(part) for position, part in enumerate(parts)
    )


def format_count(number: int) -> str:
    """Return a number with separators, such as "10 000" (with narrow spaces)."""
    return f"{number:,}".replace(",", "\u202f")


def count_noun(number: int, one: str, many: str) -> str:
    """Return a number with its noun, such as "1 node" or "1,200 nodes"."""
    return f"{number:,} {one if number == 1 else many}"


def format_moment(at_ns: int) -> str:
    """Return a time as machines read it, such as `2026-11-28T10:00:00Z`."""
    return datetime.fromtimestamp(at_ns // SECOND, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def format_clock(at_ns: int) -> str:
    """Return a time for people, such as `2026-11-28 10:00 UTC`."""
    return datetime.fromtimestamp(at_ns // SECOND, UTC).strftime("%Y-%m-%d %H:%M UTC")


def format_age(at_ns: int, now_ns: int) -> str:
    """Return how long ago a time was, in whole seconds, such as "3d4h". Empty for an unknown time."""
    if at_ns <= 0:
        return ""
    return format_rounded_duration(max(0, now_ns - at_ns) // SECOND * SECOND)


TENTHS_BELOW_NS: Final = 10 * SECOND
"""Shorter durations have a digit after the point: the start of a task takes about a second."""


def format_span(duration_ns: int) -> str:
    """Return a duration, such as "0.4s", "12s" or "3d4h"."""
    duration_ns = max(0, duration_ns)
    return f"{duration_ns / SECOND:.1f}s" if duration_ns < TENTHS_BELOW_NS else format_age(1, duration_ns + 1)
