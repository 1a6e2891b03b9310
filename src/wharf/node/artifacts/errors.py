"""Why an artifact is not there, in a sentence that may be shown: no header or secret of the job is in it."""


class ArtifactError(Exception):
    """`is_lasting`: trying again will not help, because the job itself must be changed."""

    def __init__(self, told: str, *, is_lasting: bool = False) -> None:
        super().__init__(told)
        self.is_lasting = is_lasting
