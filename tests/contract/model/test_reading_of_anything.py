"""Whatever is sent, reading either gives a record or says what is wrong: never another error."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) in a JSON value."""
    if isinstance(value, dict):
        pairs = list(value.items())
    elif isinstance(value, list):
        pairs = list(enumerate(value))
    else:
        return []
    return [place for key, inner in pairs for place in ((value, key), *places(inner))]


@settings(max_examples=300, deadline=None)
@given(jobs, anything, st.data())
def test_a_specification_with_something_odd_in_it_is_read_or_refused(
    job: dict[str, Any], odd: Any, data: st.DataObject
) -> None:
    container, key = data.draw(st.sampled_from(places(job)))
    container[key] = odd

    try:
        read_job = convert_object(Job, job).value
    except DecodingError as refusal:
        told = refusal.problems
    else:
        admitted = add_implied_constraints(canonicalize_job(read_job))
        validate_job(admitted)
        # What was read can be kept: it fits the formats of the log.
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(admitted), type=Job) == admitted
        return

    assert told != ()


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=40))
def test_bytes_that_are_no_job_are_refused_with_a_sentence(body: bytes) -> None:
    with pytest.raises(DecodingError, match=r"JSON|expected|ID"):
        decode_record(Job, body)
