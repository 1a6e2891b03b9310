"""Rules for templates (jobs.md 2.8) and artifacts (2.9)."""

import re
from typing import Final

from wharf.contract.model.jobs.templates import Artifact, ChangeMode, GetterMode, Template
from wharf.contract.model.jobs.validation.findings import ValidationReport, suggest_one_of
from wharf.languages.templates.errors import TemplateError
from wharf.languages.templates.functions import FUNCTION_ARITIES
from wharf.languages.templates.parser import find_template_errors

MAX_CHECKED_ACTION_CHARS: Final = 2_000
"""Characters of all `{{ }}` of a task that servers parse; limits the CPU time of a registration to about 20 ms.
The command line parses all templates, and so does the node.
"""
CHANGE_MODES: Final = tuple(str(word) for word in ChangeMode)
GETTER_MODES: Final = tuple(str(word) for word in GetterMode)
DIGEST_LENGTHS: Final = {"md5": 32, "sha1": 40, "sha256": 64, "sha512": 128}
"""Number of hexadecimal digits of a checksum, by type."""
LEFT_DELIMITER: Final = "{{"
RIGHT_DELIMITER: Final = "}}"
_PERMISSIONS = re.compile(r"[0-7]{1,5}\Z")
_HEX = re.compile(r"[0-9a-fA-F]+\Z")


def is_outside_folder(path: str) -> bool:
    """Return whether a relative path leaves its base folder by `..`. A leading slash is ignored."""
    depth = 0
    for part in path.split("/"):
        if part == "..":
            depth -= 1
        elif part not in ("", "."):
            depth += 1
        if depth < 0:
            return True
    return False


def check_templates(templates: tuple[Template, ...] | None, path: str, report: ValidationReport) -> None:
    """Add each problem of a task's templates to the report. No two templates may have the same destination.

    `path` is the path of the task.
    """
    destinations: dict[str, int] = {}
    action_chars = 0
    for position, template in enumerate(templates or ()):
        field_path = f"{path}.Templates[{position}]"
        section = report.add_section(f"Template {position + 1} validation failed")
        action_chars += _count_action_chars(template)
        if action_chars <= MAX_CHECKED_ACTION_CHARS:
            # Only one: a search for the name that was meant takes milliseconds.
            for error in find_syntax_errors(
                template.embedded_tmpl, template.left_delim, template.right_delim, max_errors=1
            ):
                section.add_error(f"{field_path}.EmbeddedTmpl", f"{describe_template_place(error)}: {error.reason}")
        _check_template(template, field_path, section)
        first = destinations.setdefault(template.dest_path, position)
        if first != position:
            section.add_error(
                f"{field_path}.DestPath", f"Template {position + 1} has same destination as template {first + 1}"
            )


def find_syntax_errors(text: str, left: str, right: str, *, max_errors: int) -> list[TemplateError]:
    """Return the first errors of a template's text, such as unknown functions. Empty delimiters are the usual ones."""
    return find_template_errors(
        text, FUNCTION_ARITIES, left or LEFT_DELIMITER, right or RIGHT_DELIMITER, max_errors=max_errors
    )


def describe_template_place(error: TemplateError) -> str:
    """Return where an error is in the text of its template."""
    return f"template, line {error.line}, column {error.column}"


def _count_action_chars(template: Template) -> int:
    """Return the number of characters from each left delimiter to its right one. Only these cost time to parse."""
    left, right = template.left_delim or LEFT_DELIMITER, template.right_delim or RIGHT_DELIMITER
    parts = template.embedded_tmpl.split(left)[1:]
    return sum(len(part.partition(right)[0]) + len(left) + len(right) for part in parts)


def _check_template(template: Template, path: str, report: ValidationReport) -> None:
    """Add each problem of one template to the report."""
    if not template.source_path and not template.embedded_tmpl:
        report.add_error(path, "Must specify a source path or have an embedded template")
    if not template.dest_path:
        report.add_error(f"{path}.DestPath", "Must specify a destination for the template")
    elif is_outside_folder(template.dest_path):
        report.add_error(f"{path}.DestPath", "template destination path escapes the task's directory")
    _check_change(template, path, report)
    if template.splay < 0:
        report.add_error(f"{path}.Splay", "Must specify positive splay value")
    if not _PERMISSIONS.match(template.perms):
        report.add_error(f"{path}.Perms", f'Failed to parse "{template.perms}" as octal')
    if template.wait is not None:
        low, high = template.wait.min or 0, template.wait.max
        if low < 0 or (high is not None and low > high):
            report.add_error(f"{path}.Wait.Min", "template wait min must be less than wait max")
    if template.vault_grace:
        report.add_warning(f"{path}.VaultGrace", "VaultGrace has been deprecated and has no effect")


def _check_change(template: Template, path: str, report: ValidationReport) -> None:
    """Add each problem of a template's change mode, signal and script to the report."""
    mode = template.change_mode
    if mode not in CHANGE_MODES:
        report.add_error(
            f"{path}.ChangeMode", f'Invalid change mode given: "{mode}"', suggest_one_of(CHANGE_MODES, mode)
        )
    elif mode == ChangeMode.SIGNAL:
        if not template.change_signal:
            report.add_error(f"{path}.ChangeSignal", "Must specify signal value when change mode is signal")
        if template.envvars:
            report.add_error(f"{path}.ChangeMode", "cannot use signals with env var templates")
    elif mode == ChangeMode.SCRIPT and template.change_script is None:
        report.add_error(
            f"{path}.ChangeScript", "must specify change script configuration value when change mode is script"
        )
    elif mode == ChangeMode.SCRIPT and template.change_script is not None and not template.change_script.command:
        report.add_error(f"{path}.ChangeScript.Command", "must specify script path value when change mode is script")


def check_artifacts(artifacts: tuple[Artifact, ...] | None, path: str, report: ValidationReport) -> None:
    """Add each problem of a task's artifacts to the report. `path` is the path of the task."""
    for position, artifact in enumerate(artifacts or ()):
        field_path = f"{path}.Artifacts[{position}]"
        section = report.add_section(f"Artifact {position + 1} validation failed")
        if not artifact.getter_source:
            section.add_error(f"{field_path}.GetterSource", "source must be specified")
        if artifact.getter_mode not in GETTER_MODES:
            section.add_error(
                f"{field_path}.GetterMode",
                f'invalid artifact mode "{artifact.getter_mode}"',
                suggest_one_of(GETTER_MODES, artifact.getter_mode),
            )
        if is_outside_folder(artifact.relative_dest):
            section.add_error(f"{field_path}.RelativeDest", "artifact destination path escapes the task's directory")
        _check_checksum(artifact, field_path, section)


def _check_checksum(artifact: Artifact, path: str, report: ValidationReport) -> None:
    """Add an error to the report if an artifact's checksum is not `type:value`.

    A checksum with a variable is accepted.
    """
    options = artifact.getter_options or {}
    if "checksum" not in options:
        return
    checksum, field_path = options["checksum"].strip(), f"{path}.GetterOptions.checksum"
    if "${" in checksum:
        return
    digest_type, colon, digest = checksum.partition(":")
    if not checksum:
        report.add_error(field_path, "checksum value cannot be empty")
    elif not colon:
        report.add_error(field_path, f'checksum must be given as "type:value" format; got "{checksum}"')
    elif digest_type not in DIGEST_LENGTHS:
        report.add_error(
            field_path, f'unsupported checksum type "{digest_type}"', suggest_one_of(tuple(DIGEST_LENGTHS), digest_type)
        )
    elif not _HEX.match(digest) or len(digest) != DIGEST_LENGTHS[digest_type]:
        report.add_error(
            field_path,
            f'invalid {digest_type} checksum "{digest}"',
            f"give {DIGEST_LENGTHS[digest_type]} hexadecimal digits",
        )
