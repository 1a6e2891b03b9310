"""The result of reading a job file: the JSON of the job, warnings, and the place of each field in the file."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from wharf.job_files.hcl.places import FilePath, find_path_value, format_path, parse_path
from wharf.languages.hcl.diagnostics import HIDDEN, Diagnostic, HiddenValues, SourceRange, hide_quoted
from wharf.languages.hcl.values import Value

_JOB_POLICIES: Final[Mapping[str, str]] = {"Update": "Update", "Migrate": "Migrate", "ReschedulePolicy": "Reschedule"}
"""The policies that groups inherit, with their names in the job."""
_INHERITED: Final = re.compile(rf"TaskGroups\[\d+\]\.({'|'.join(_JOB_POLICIES)})\b")
_NAME_FIELDS: Final = frozenset(("ID", "Name", "Label", "Namespace", "NodePool", "Region"))
"""Fields that every list of the command line tool and of the API shows."""
MAX_NAME_WARNINGS: Final = 20
"""The warnings about names of one file."""
_WORD: Final = re.compile(r"\w{3,}")
_UNUSUAL_NAME: Final = re.compile(r"\.([^.\[\]]*[^\w.\[\]][^.\[\]]*)")
"""A name that places have in brackets, and that validation writes after a dot, such as that of the volume `my-data`."""


@dataclass(frozen=True, slots=True)
class ParsedJob:
    """A job from a file. `document` is its JSON with the names of the API.

    `warnings` are sentences with file, line and column. `places` maps paths of fields, such as
    `TaskGroups[0].Tasks[0].Resources.CPU`, to their places in the file, so that errors of a later validation can show the line.
    """

    document: dict[str, Any]
    warnings: list[str]
    places: Mapping[str, SourceRange]
    variables: Mapping[str, Value] = field(default_factory=dict)
    """The values of the variables that the file declares."""
    hidden: HiddenValues = field(default_factory=HiddenValues)
    """The values of sensitive variables. No text for users contains them."""
    spell_path: Callable[[str], str] = str
    """Returns the names that the file has for the path of a field."""
    sensitive_paths: Sequence[FilePath] = ()
    """The paths of the fields of the document whose values come from sensitive variables (record 0249)."""

    def hide_sensitive_values(self) -> None:
        """Hide the values of the sensitive fields in all texts, too, and warn of names among them."""
        for path in self.sensitive_paths:
            self.hidden.add_computed(find_path_value(self.document, path))
        names = [path for path in self.sensitive_paths if path and path[-1] in _NAME_FIELDS]
        for path in names[:MAX_NAME_WARNINGS]:
            text = format_path(path)
            self.warnings.append(
                f"{self.find_place(text)}: {self.spell_path(text)} comes from a sensitive variable, and names are not hidden"
            )

    def is_sensitive(self, path: str) -> bool:
        """Return whether the value of a field, or a part of it, comes from a sensitive variable."""
        return any(all(map(_is_same_step, steps, sensitive)) for steps, sensitive in self._pair_paths(path))

    def cut_path(self, path: str) -> str:
        """Return the path of a field, or of the sensitive field around it, whose keys may be parts of a secret."""
        for steps, sensitive in self._pair_paths(path):
            if len(sensitive) < len(steps) and all(map(_is_same_step, steps, sensitive)):
                return format_path(sensitive)
        return path

    def _pair_paths(self, path: str) -> Iterator[tuple[FilePath, FilePath]]:
        """Yield the steps of a path with those of each sensitive path."""
        if self.sensitive_paths:
            steps = parse_path(_UNUSUAL_NAME.sub(r"[\1]", path))
            for sensitive in self.sensitive_paths:
                yield steps, sensitive

    def hide_message(self, path: str, message: str) -> str:
        """Return a message about a field without the values of sensitive variables, also if it quotes only a word of one."""
        message = self.hidden.hide(message)
        if not self.is_sensitive(path):
            return message
        value = str(find_path_value(self.document, parse_path(path))).lower()
        return _WORD.sub(
            lambda word: HIDDEN if word[0] != "hidden" and word[0].lower() in value else word[0], hide_quoted(message)
        )

    def find_place(self, path: str) -> SourceRange:
        """Return the place of a field, or of the nearest object around it that the file contains.

        A policy that a group inherits has its place in the job.
        """
        path = _UNUSUAL_NAME.sub(r"[\1]", path)
        inherited = _INHERITED.match(path)
        if inherited is not None and inherited[0] not in self.places:
            path = path.replace(inherited[0], _JOB_POLICIES[inherited[1]], 1)
        while path and path not in self.places:
            path = path[: max(path.rfind("."), path.rfind("["), 0)]
        return self.places[path]

    def hide_keys(self, text: str) -> str:
        """Return a text without the keys of sensitive maps, for a text whose field is unknown."""
        keys = HiddenValues()
        for path in self.sensitive_paths:
            keys.add(find_path_value(self.document, path))
        return keys.hide(text)

    def render_problem(self, path: str, name: str, message: str, fix: str = "") -> str:
        """Return a problem of a field as text for users: place, name and message, the line with a mark, and the fix."""
        text = f"{name}: {self.hide_message(path, message)}" if name else self.hide_message(path, message)
        return Diagnostic(self.find_place(path), text, self.hide_message(path, fix)).render(self.hidden)


def _is_same_step(step: str | int, other: str | int) -> bool:
    return step == other or (isinstance(step, str) and isinstance(other, str) and step.lower() == other.lower())
