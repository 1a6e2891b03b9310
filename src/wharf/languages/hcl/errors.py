"""The errors of HCL and JSON documents.

    HclError
    ├── HclSyntaxError      the text does not follow the grammar
    └── HclStructureError   the document has an item of the wrong type, such as an attribute instead of a block

The author of the document can fix both. `text` is the whole message with its location in front; `reason` has no location.
"""

from wharf.languages.source_locations import SourceLocation


class HclError(Exception):
    """A document that cannot be used, with the location of the problem."""

    def __init__(self, location: SourceLocation, reason: str) -> None:
        self.location = location
        self.reason = reason
        self.text = f"At {location.line}:{location.column}: {reason}"
        super().__init__(self.text)


class HclSyntaxError(HclError):
    """The text does not follow the grammar of HCL or JSON."""


class HclStructureError(HclError):
    """The document has an item of another type than the caller expects."""
