"""The jobs that a job waits for, as users write them: `JOB`, or `JOB:failed`."""

from collections.abc import Iterable
from typing import Final

from wharf.contract.model.jobs.steps import NeedWhen
from wharf.contract.model.jobs.validation.findings import suggest_one_of

WORDS: Final = tuple(str(word) for word in NeedWhen)


class NeedError(ValueError):
    """The error for a text that names no job to wait for. Its message says what to write."""


def parse_needs(texts: Iterable[str]) -> tuple[dict[str, str], ...]:
    """Return the needs of a job as JSON data. Raises `NeedError`."""
    needs: dict[str, dict[str, str]] = {}
    for text in texts:
        need = _parse_need(text)
        if need["On"] in needs:
            raise NeedError(f"the job {need['On']} is named twice: remove one")
        needs[need["On"]] = need
    return tuple(needs.values())


def _parse_need(text: str) -> dict[str, str]:
    job_id, colon, word = text.rpartition(":")
    if not colon:
        job_id, word = text, NeedWhen.SUCCEEDED.value
    if not job_id or " " in job_id:
        raise NeedError(f'"{text}" names no job: write its ID, such as train-4f2a1b')
    if word not in WORDS:
        raise NeedError(f'"{text}": unknown word "{word}" after the colon: {suggest_one_of(WORDS, word)}')
    return {"On": job_id, "When": word}
