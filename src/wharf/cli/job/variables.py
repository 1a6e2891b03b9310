"""Values of the variables of a job file: options, values files, automatic files beside the job file, and the environment."""

import os
import re
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from wharf.cli.common.documents import STDIN, read_utf8_text
from wharf.cli.common.errors import CliError
from wharf.cli.common.sentences import print_notice

if TYPE_CHECKING:
    from wharf.languages.hcl.values import Value
    from wharf.languages.hcl.variables import ValuesDocument, VariableInputs

F = TypeVar("F", bound=Callable[..., Any])

MAX_AUTOMATIC_FILES: Final = 20
"""Limit of the automatic files beside a job file; protects from a folder that is full of them."""
MAX_FOLDER_ENTRIES: Final = 10_000
"""Limit of the entries of the folder that are searched for automatic files."""
AUTOMATIC_FILE: Final = re.compile(r".+\.auto\.[A-Za-z0-9_-]*vars(?:\.json)?")
_NAME: Final = re.compile(r"[^\W\d][\w-]*")
MAX_VALUES_BYTES: Final = 1_000_000
"""Limit of a values file, equal to that of a job file in HCL."""


@dataclass(frozen=True, slots=True)
class VariableOptions:
    """What the options of a command say about variables. `values` are names with texts."""

    values: tuple[tuple[str, str], ...] = ()
    files: tuple[str, ...] = ()
    is_strict: bool = True

    def list_words(self, shown_names: "Set[str]") -> list[str]:
        """Return the options as arguments of a command. Only the values of `shown_names` are not left out."""
        words = [
            word for name, text in self.values for word in ("--var", f"{name}={text if name in shown_names else '...'}")
        ]
        words += [word for file in self.files for word in ("--var-file", file)]
        return words if self.is_strict else [*words, "--hcl2-strict=false"]


def list_environment_values(
    inputs: "VariableInputs", variables: "Mapping[str, Value]", sensitive_names: "Set[str]"
) -> tuple[list[tuple[str, str]], list[str]]:
    """Return the values that come from the environment: names with texts, and variables of the environment with secrets.

    A value that a file or a flag replaces is not among them. The texts of secrets are not returned.
    """
    from wharf.languages.hcl.variables import ENVIRONMENT_PREFIXES

    replaced = {name for name, _ in inputs.flags}
    for document in (*inputs.automatic_files, *inputs.files):
        replaced |= document.body.arguments.keys()
    values: list[tuple[str, str]] = []
    secrets: list[str] = []
    for name in variables:
        label = next(
            (f"{prefix}{name}" for prefix in ENVIRONMENT_PREFIXES if f"{prefix}{name}" in inputs.environment), ""
        )
        if not label or name in replaced:
            continue
        if name in sensitive_names:
            secrets.append(label)
        else:
            values.append((name, inputs.environment[label]))
    return values, secrets


class _ValueType(click.ParamType[tuple[str, str]]):
    """The type of `--var name=value`. Error texts never contain the value: it may be a secret."""

    name = "NAME=VALUE"

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> tuple[str, str]:
        name, sign, text = str(value).partition("=")
        if not sign or not _NAME.fullmatch(name):
            if not sign:
                self.fail("the text has no =: write --var NAME=VALUE, such as --var copies=2", param, context)
            shown = name[:80] if name.isprintable() else "the text"
            self.fail(f"{shown} is not NAME=VALUE: a name has letters, digits, _ and -", param, context)
        return name, text


def variable_options(command: F) -> F:
    """Add the options for variables to a command. It receives the fields of `VariableOptions`, as `values`, `value_files` and `is_strict`."""
    for option in reversed((
        click.option(
            "--var", "values", multiple=True, type=_ValueType(), metavar="NAME=VALUE",
            help="Value of a variable of the job file; may be repeated.",
        ),
        click.option(
            "--var-file", "value_files", multiple=True, type=click.Path(), metavar="FILE",
            help="File with values of variables; may be repeated.",
        ),
        click.option("--hcl2-strict", "is_strict", type=click.BOOL, default=True, hidden=True),
    )):  # fmt: skip
        command = option(command)
    return command


def read_inputs(
    job_path: str, options: VariableOptions, declared_names: Mapping[str, bool], *, reads_automatic_files: bool = True
) -> "VariableInputs":
    """Return the values for the variables of a job file. A note names the automatic files. Raises CliError.

    `declared_names` are the variables whose declarations say whether they are sensitive: errors show no values of those.
    """
    from wharf.languages.hcl.variables import ENVIRONMENT_PREFIXES, VariableInputs

    automatic_paths = find_automatic_files(job_path) if reads_automatic_files else []
    if automatic_paths:
        print_notice(f"note: read variables from {', '.join(automatic_paths)}")
    return VariableInputs(
        environment={name: text for name, text in os.environ.items() if name.startswith(ENVIRONMENT_PREFIXES)},
        automatic_files=tuple([_read_values(path, declared_names) for path in automatic_paths]),
        files=tuple([_read_values(path, declared_names) for path in options.files]),
        flags=options.values,
        is_strict=options.is_strict,
    )


def find_automatic_files(job_path: str) -> list[str]:
    """Return the automatic files beside a job file, such as `prod.auto.vars`, by name. Raises CliError."""
    if job_path == STDIN:
        return []
    folder = Path(job_path).parent
    found: list[str] = []
    try:
        with os.scandir(folder) as entries:
            for count, entry in enumerate(entries):
                if count >= MAX_FOLDER_ENTRIES:
                    break  # Such a folder is no folder of a project.
                if AUTOMATIC_FILE.fullmatch(entry.name) and entry.is_file():
                    found.append(str(folder / entry.name))
    except OSError:
        return []  # The job file itself is missing; the caller reports that.
    if len(found) > MAX_AUTOMATIC_FILES:
        raise CliError(
            f"{folder}: {len(found)} files match *.auto.*vars, more than {MAX_AUTOMATIC_FILES}: name those to read "
            "with --var-file, and rename them"
        )
    return sorted(found)


def _read_values(path: str, declared_names: Mapping[str, bool]) -> "ValuesDocument":
    """Return a values file. Raises CliError with all errors of its syntax."""
    from wharf.languages.hcl.diagnostics import DocumentErrors
    from wharf.languages.hcl.documents import parse_values

    text = read_utf8_text(path, path, max_bytes=MAX_VALUES_BYTES)
    try:
        return parse_values(text, path, declared_names)
    except DocumentErrors as errors:
        raise CliError(errors.text) from errors
