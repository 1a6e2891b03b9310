"""Warnings about references that no node can replace, because their first name is unknown there."""

import re
from typing import Any, Final

from wharf.job_files.hcl.places import iterate_tasks
from wharf.languages.hcl.documents import EvaluatedDocument, RuntimeReference
from wharf.languages.suggestions import NameSearch

MAX_WARNINGS: Final = 20
"""The warnings of one file."""
NODE_ROOTS: Final = frozenset({"attr", "device", "env", "meta", "node", "steps", "unique"})
"""The first names of references that nodes replace, beside the names of variables of a task."""
SERVICE_NAMES: Final = frozenset({"JOB", "TASKGROUP", "TASK", "BASE"})
"""Names that the name of a service may refer to."""
_TASK_VARIABLE: Final = re.compile(r"(?:NOMAD|WHARF|VAULT|CONSUL)_[\w-]+\Z")
MIN_SIMILARITY: Final = 0.8
"""How similar a known name must be to be suggested. The names are short, so one letter of four may differ by accident."""
_MAX_MARKER_CHARS: Final = 8
"""How far before a reference its `${` may begin."""
_PARSER_ROOTS: Final = ("var", "local")


def list_warnings(evaluated: EvaluatedDocument, document: dict[str, Any]) -> list[str]:
    """Return a sentence for the first reference with each unknown name, in the order of the file."""
    environment = _list_environment_names(document)
    known = NODE_ROOTS | SERVICE_NAMES | environment
    first: dict[str, RuntimeReference] = {}
    for _, reference in sorted(evaluated.runtime_references.items()):
        if reference.root not in known and _TASK_VARIABLE.match(reference.root) is None:
            first.setdefault(reference.root, reference)
    search = NameSearch()
    return [_describe(reference, environment, search) for reference in list(first.values())[:MAX_WARNINGS]]


def _list_environment_names(document: dict[str, Any]) -> frozenset[str]:
    """Return the names of environment variables of all tasks."""
    names: set[str] = set()
    for _, task in iterate_tasks(document):
        env = task.get("Env")
        names |= env.keys() if isinstance(env, dict) else set()
    return frozenset(names)


def _describe(reference: RuntimeReference, environment: frozenset[str], search: NameSearch) -> str:
    """Return the warning about a reference: what happens to it, and what was probably meant."""
    root, place = reference.root[:80], reference.place
    nearest = search.find_nearest_name(
        reference.root, (*_PARSER_ROOTS, *NODE_ROOTS, *environment), min_similarity=MIN_SIMILARITY
    )
    if nearest is not None:
        fix = f'did you mean "{nearest}"?'
    elif _is_in_template(reference):
        fix = f"write $${{...}} if a program is to read {root}"
    else:
        fix = "write it in quotes if it is a text"
    return f'{place}: "{root}" is no variable, local value or value of a node: the reference stays as text; {fix}'


def _is_in_template(reference: RuntimeReference) -> bool:
    """Return whether a reference is written as `${...}`. In the JSON form, its place is the whole string."""
    text, start = reference.place.source.text, reference.place.start
    return text.startswith('"', start) or text[max(0, start - _MAX_MARKER_CHARS) : start].rstrip(" ~").endswith("${")
