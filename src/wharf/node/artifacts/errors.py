"""Why an artifact is not there, in a sentence that may be shown: no header or secret of the job is in it."""


class ArtifactError(Exception):
    """`is_lasting`: trying again will not help, because the job itself must be changed."""

    def __init__(self, message: str, *, is_permanent: bool = False) -> None:
        super().__init__(message)
        self.is_permanent = is_permanent
