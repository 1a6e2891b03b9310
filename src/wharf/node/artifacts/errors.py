"""The error of failed artifacts. Its message contains no header or secret of the job."""


class ArtifactError(Exception):
    """The error of an artifact that cannot be fetched or installed.

    `is_permanent`: a retry cannot succeed, because the job must be changed.
    """

    def __init__(self, message: str, *, is_permanent: bool = False) -> None:
        super().__init__(message)
        self.is_permanent = is_permanent
