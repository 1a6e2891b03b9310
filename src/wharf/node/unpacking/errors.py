"""The error of failed artifacts. Its message contains no header or secret of the job, and only printable characters."""


class ArtifactError(Exception):
    """The error of an artifact that cannot be fetched or installed.

    `is_permanent`: a retry cannot succeed, because the job must be changed.
    """

    def __init__(self, message: str, *, is_permanent: bool = False) -> None:
        super().__init__(_make_printable(message))
        self.is_permanent = is_permanent


def _make_printable(text: str) -> str:
    """Return the text with escapes for characters that are not printable, such as those of the name of an entry."""
    return "".join(char if char.isprintable() or char == "\n" else ascii(char)[1:-1] for char in text)
