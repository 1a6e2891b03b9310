"""For any input, decoding returns a record or a `DecodingError`, and never raises another error."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders import some_job_settings
from tests.contract.model.submissions import jobs
from wharf.contract.model.decoding import DecodingError, convert_object, decode_record
from wharf.contract.model.jobs.canonical_form import canonicalize_job
from wharf.contract.model.jobs.implied_constraints import add_implied_constraints
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.jobs.validation import validate_job

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3)
anything = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


def list_locations(value: Any) -> list[tuple[Any, Any]]:
    """Return every (container, key) pair in a JSON value."""
    if isinstance(value, dict):
        pairs = list(value.items())
    elif isinstance(value, list):
        pairs = list(enumerate(value))
    else:
        return []
    return [location for key, inner in pairs for location in ((value, key), *list_locations(inner))]


@settings(max_examples=300, deadline=None)
@given(jobs, anything, st.data())
def test_a_specification_with_a_random_change_is_decoded_or_refused(
    job: dict[str, Any], odd: Any, data: st.DataObject
) -> None:
    container, key = data.draw(st.sampled_from(list_locations(job)))
    container[key] = odd

    try:
        read_job = convert_object(Job, job).value
    except DecodingError as refusal:
        problems = refusal.problems
    else:
        admitted = add_implied_constraints(canonicalize_job(read_job, some_job_settings()))
        validate_job(admitted, some_job_settings())
        # A decoded record can be stored: it can be encoded for the log.
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(admitted), type=Job) == admitted
        return

    assert problems != ()


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=40))
def test_bytes_that_are_not_a_job_are_refused_with_a_message(body: bytes) -> None:
    with pytest.raises(DecodingError, match=r"JSON|expected|ID"):
        decode_record(Job, body)
