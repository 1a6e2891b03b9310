"""What is said against a document.

    HclError
    ├── NotADocument    the text does not follow the grammar
    └── NotAsExpected   it does, and where the reader looks for one thing stands another

Both are the writer's to mend. `text` is the whole sentence with its place in front; `reason` is the sentence without it.
"""

from wharf.hcl.tree import Place


class HclError(Exception):
    def __init__(self, at: Place, reason: str) -> None:
        self.at = at
        self.reason = reason
        self.text = f"At {at.line}:{at.column}: {reason}"
        super().__init__(self.text)


class NotADocument(HclError):
    pass


class NotAsExpected(HclError):
    pass
