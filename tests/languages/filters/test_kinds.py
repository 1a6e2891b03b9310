"""Kinds derived from types: wire names, kinds, hidden and joined fields."""

import datetime
import decimal
import uuid
from typing import Any

import msgspec
import pytest

from tests.languages.filters.datum import DATUM, Datum
from wharf.contract.model.acl.tokens import Token
from wharf.contract.model.allocations.allocation import Allocation, ClientStatus, DesiredStatus
from wharf.contract.model.allocations.resources import AllocatedCpu, AllocatedResources, AllocatedTaskResources
from wharf.contract.model.jobs.job import Job
from wharf.languages.filters import FilterSubject, FilterTypeError, JoinedField, compile_filter, list_selectors
from wharf.languages.filters.kinds import get_fields, get_kind


class Branch(msgspec.Struct):
    name: str
    children: tuple["Branch", ...] = ()


@pytest.mark.parametrize(
    ("annotation", "name"),
    [
        *((str, "string"), (str | None, "string"), (int, "int"), (bool, "bool"), (float, "float"), (bytes, "bytes")),
        *((datetime.datetime, "time"), (uuid.UUID, "string"), (decimal.Decimal, "string"), (datetime.date, "string")),
        *((list[str], "list"), (tuple[int, ...], "list"), (frozenset[str], "list"), (dict[str, int], "map")),
        *((Datum, "struct"), (Any, "any"), (object, "any"), (int | str, "any"), (msgspec.Raw, "any")),
    ],
)
def test_an_annotation_is_converted_to_its_kind(annotation: Any, name: str) -> None:
    assert name == get_kind(annotation).name


def test_fields_have_their_wire_names() -> None:
    assert {"ID", "NodePool", "NomadTokenID", "ParameterizedJob"} <= get_fields(Job).keys()


def test_values_encoded_as_text_are_compared_as_that_text() -> None:
    class Parcel(msgspec.Struct):
        id: uuid.UUID
        weights: list[decimal.Decimal]

    parcel = Parcel(uuid.UUID(int=1), [decimal.Decimal("1.50")])

    assert compile_filter('id == "00000000-0000-0000-0000-000000000001"', Parcel).accepts(parcel)
    assert compile_filter('id matches "^0"', Parcel).accepts(parcel)
    assert compile_filter('"1.50" in weights', Parcel).accepts(parcel)
    assert not compile_filter('"1.5" in weights', Parcel).accepts(parcel)


def test_a_type_may_contain_itself() -> None:
    tree = Branch("root", (Branch("leaf"),))

    assert compile_filter("children.0.name == leaf", Branch).accepts(tree)
    assert [info.selector for info in list_selectors(Branch)][:3] == ["name", "children", "children.<index>"]


def test_keys_and_members_of_a_map_without_text_keys_cannot_be_selected() -> None:
    class Table(msgspec.Struct):
        rows: dict[int, str]

    for text in ("rows.1 == a", "1 in rows", "any rows as r { r == 1 }"):
        with pytest.raises(FilterTypeError):
            compile_filter(text, Table)
    assert compile_filter("rows is not empty", Table).accepts(Table({1: "a"}))


def test_a_type_without_fields_cannot_be_filtered() -> None:
    with pytest.raises(TypeError):
        compile_filter("a == 1", int)


def test_a_hidden_field_is_unknown() -> None:
    tokens = FilterSubject(Token, hidden=frozenset({"SecretDigest", "SecretSealed", "SealedWith"}))

    with pytest.raises(FilterTypeError) as raised:
        compile_filter('SecretDigest matches "^0"', tokens)

    assert "couldn't find key" in raised.value.text
    assert "did you mean" not in raised.value.text


def test_hiding_an_unknown_field_is_an_error() -> None:
    with pytest.raises(ValueError, match="Datum has no field Nope to hide"):
        FilterSubject(Datum, hidden=frozenset({"Nope"}))


def test_a_joined_field_is_read_with_its_own_function() -> None:
    jobs = {"web": Job(id="web", type="batch")}
    allocations = FilterSubject(
        Allocation,
        joined=(
            JoinedField("Job", Job | None, lambda allocation: jobs.get(allocation.job_id)),
            # Stored encoded, so the annotation of the field is a msgspec type.
            JoinedField(
                "AllocatedResources", AllocatedResources | None, lambda allocation: allocation.allocated_resources
            ),
        ),
    )
    resources = AllocatedResources(tasks={"nginx": AllocatedTaskResources(cpu=AllocatedCpu(cpu_shares=500))})
    allocation = Allocation(
        id="1",
        job_id="web",
        desired_status=DesiredStatus.RUN,
        client_status=ClientStatus.RUNNING,
        allocated_resources=resources,
    )

    assert compile_filter("Job.Type == batch", allocations).accepts(allocation)
    assert compile_filter("AllocatedResources.Tasks.nginx.Cpu.CpuShares == 500", allocations).accepts(allocation)
    assert compile_filter("any AllocatedResources.Tasks as t { t == nginx } ", allocations).accepts(allocation)


def test_an_unset_field_is_null() -> None:
    assert compile_filter("Unset is nil", Datum).accepts(DATUM)
