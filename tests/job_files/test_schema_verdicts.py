"""The verdicts of the schema and of `wharf job validate` on changed job files: an editor and the command agree on their form.

`make test` makes some of the changes, `make fuzz` all.
"""

import copy
import json
import re
from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from tests.fuzz.rounds import IS_FULL_RUN
from tests.job_files.hcl.job_texts import PORTS
from tests.job_files.sample_jobs import BASE, build_job_with_example, find_problems
from wharf.contract.model.decoding import DecodingError
from wharf.job_files.markup_jobs import parse_markup_job
from wharf.job_files.reference.examples import EXAMPLES
from wharf.job_files.schema import load_schema
from wharf.languages.hcl.diagnostics import DocumentErrors
from wharf.languages.hcl.variables import VariableInputs
from wharf.languages.markup import MarkupFormat

pytestmark = pytest.mark.fuzz

CHANGE_STEP = 1 if IS_FULL_RUN else 3
"""One of this number of changes is made."""
VALIDATOR = Draft202012Validator(load_schema())
UNSUPPORTED = ("Multiregion", "Vault", "CSIPluginConfig")
"""Blocks with which each job is refused."""
DECLARATIONS = {
    **BASE,
    "variables": {
        "n": {
            "type": "number", "default": 3, "description": "d", "sensitive": False,
            "validation": {"condition": "var.n > 1", "error_message": "no"},
        },
        "s": {"type": "string", "default": "x"},
        "l": {"type": "list(string)", "default": ["a"]},
        "m": {"type": "map(number)", "default": {"a": 1}},
        "b": {"type": "bool", "default": True},
        "any": 1,
    },
    "locals": {"a": 1},
}  # fmt: skip
VALUES: list[Any] = [1, -1, "x", "", [1], ["x"], {}, {"x": 1}, True, None, "5", "30s"]
ONLY_REFUSED_BY_SCHEMA = re.compile(
    r"TaskGroups.0.Tasks.0.Config.run_for .*"
    r"|TaskGroups.0.Tasks.0.Lifecycle =\{\}"
    r"|TaskGroups.0.Tasks.0.VolumeMounts.0.Destination .*"
    r"|TaskGroups.0.Volumes.data( =\{\}|.Type .*)"  # The API ignores such a volume.
    r"|Spreads.0.SpreadTarget.\d( =\{\}|.Value .*)"
)
ONLY_REFUSED_BY_VALIDATE = re.compile(
    r"the variable \"\w+\" has no value|is not of type (list|map)\(|invalid value|a validation may use only|operator >"
    r"|the job has no ID|needs the option|takes an absolute path|takes source:target"
)
"""The values of variables, what the driver of a task needs if it has no `Config`, and the form of paths: the schema does not know
them."""


class Change(NamedTuple):
    """A changed job file, with a description of the change."""

    name: str
    document: dict[str, Any]


def iterate_paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, item in entries:
        yield (*path, step)
        yield from iterate_paths(item, (*path, step))


def find_holder(document: Any, path: tuple[Any, ...]) -> Any:
    for step in path[:-1]:
        document = document[step]
    return document


def iterate_changes(document: dict[str, Any]) -> Iterator[Change]:
    """Yield the file with each value replaced, each value removed, and each name in other spellings and misspelled."""
    for path in iterate_paths(document):
        name, last = ".".join(map(str, path)), path[-1]
        for value in VALUES:
            changed = copy.deepcopy(document)
            find_holder(changed, path)[last] = copy.deepcopy(value)
            yield Change(f"{name} ={value!r}", changed)
        changed = copy.deepcopy(document)
        del find_holder(changed, path)[last]
        yield Change(f"{name} removed", changed)
        if isinstance(last, str):
            snake = re.sub("(?=[A-Z])", "_", last).lower().strip("_")
            for spelling in dict.fromkeys([last.lower(), last.upper(), snake, f"{last}x", last[:-1]]):
                if spelling not in ("", last):
                    changed = copy.deepcopy(document)
                    holder = find_holder(changed, path)
                    entries = [(spelling if key == last else key, item) for key, item in holder.items()]
                    holder.clear()
                    holder.update(entries)
                    yield Change(f"{name} named {spelling}", changed)


def find_form_problem(document: dict[str, Any]) -> tuple[bool, str]:
    """Return whether `validate` accepts a file, and what is wrong with its form. A rule about values is no problem of form."""
    try:
        parsed = parse_markup_job(json.dumps(document), "job.json", MarkupFormat.JSON, VariableInputs(), PORTS)
        return find_problems(parsed.document).is_valid, ""
    except DocumentErrors as errors:
        return False, errors.text
    except DecodingError as error:
        return False, str(error)


@pytest.mark.parametrize("block", [*(name for name in EXAMPLES if name not in UNSUPPORTED), "variables"])
def test_the_schema_and_validate_agree_on_the_form_of_changed_files(block: str) -> None:
    document = DECLARATIONS if block == "variables" else build_job_with_example(block)
    differences: list[str] = []
    for change in islice(iterate_changes(document), 0, None, CHANGE_STEP):
        if block == "variables" and not change.name.startswith(("variables", "locals")):
            continue
        is_valid, problem = find_form_problem(change.document)
        if VALIDATOR.is_valid(change.document):
            if problem and ONLY_REFUSED_BY_VALIDATE.search(problem) is None:
                differences.append(f"only validate refuses {change.name}: {problem[:100]}")
        elif is_valid and ONLY_REFUSED_BY_SCHEMA.fullmatch(change.name) is None:
            differences.append(f"only the schema refuses {change.name}")

    assert differences == []
