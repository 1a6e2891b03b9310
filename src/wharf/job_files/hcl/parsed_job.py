"""The result of reading a job file: the JSON of the job, warnings, and the place of each field in the file."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from wharf.languages.hcl.diagnostics import SourceRange
from wharf.languages.hcl.values import Value


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

    def find_place(self, path: str) -> SourceRange | None:
        """Return the place of a field, or of the nearest object around it that the file contains."""
        while path:
            place = self.places.get(path)
            if place is not None:
                return place
            path = path[: max(path.rfind("."), path.rfind("["), 0)]
        return self.places.get("")
