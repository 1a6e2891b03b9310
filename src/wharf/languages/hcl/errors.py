"""What is said against a document.

    HclError
    ├── NotADocument    the text does not follow the grammar
    └── NotAsExpected   it does, and where the reader looks for one thing stands another

Both are the writer's to mend. `text` is the whole sentence with its place in front; `reason` is the sentence without it.
"""

from wharf.languages.hcl.tree import SourceLocation


class HclError(Exception):
    def __init__(self, location: SourceLocation, reason: str) -> None:
        self.location = location
        self.reason = reason
        self.text = f"At {location.line}:{location.column}: {reason}"
        super().__init__(self.text)


class HclSyntaxError(HclError):
    pass


class HclStructureError(HclError):
    pass
