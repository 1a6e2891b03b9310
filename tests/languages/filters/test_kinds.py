"""What is taken from types: names of the wire, kinds, hidden and joined fields."""

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
def test_an_annotation_has_its_kind(annotation: Any, name: str) -> None:
    assert name == get_kind(annotation).name


def test_fields_have_the_names_of_the_wire() -> None:
    assert {"ID", "NodePool", "NomadTokenID", "ParameterizedJob"} <= get_fields(Job).keys()


def test_what_the_wire_shows_as_text_is_compared_as_that_text() -> None:
    class Parcel(msgspec.Struct):
        id: uuid.UUID
        weights: list[decimal.Decimal]

    parcel = Parcel(uuid.UUID(int=1), [decimal.Decimal("1.50")])

    assert compile_filter('id == "00000000-0000-0000-0000-000000000001"', Parcel).accepts(parcel)
    assert compile_filter('id matches "^0"', Parcel).accepts(parcel)
    assert compile_filter('"1.50" in weights', Parcel).accepts(parcel)
    assert not compile_filter('"1.5" in weights', Parcel).accepts(parcel)


def test_a_type_may_hold_itself() -> None:
    tree = Branch("root", (Branch("leaf"),))

    assert compile_filter("children.0.name == leaf", Branch).accepts(tree)
    assert [info.selector for info in list_selectors(Branch)][:3] == ["name", "children", "children.<index>"]


def test_a_map_with_keys_that_are_no_text_has_neither_keys_nor_members() -> None:
    class Table(msgspec.Struct):
        rows: dict[int, str]

    for text in ("rows.1 == a", "1 in rows", "any rows as r { r == 1 }"):
        with pytest.raises(FilterTypeError):
            compile_filter(text, Table)
    assert compile_filter("rows is not empty", Table).accepts(Table({1: "a"}))


def test_what_is_no_record_can_not_be_filtered() -> None:
    with pytest.raises(TypeError):
        compile_filter("a == 1", int)


def test_a_hidden_field_is_unknown() -> None:
    tokens = FilterSubject(Token, hidden=frozenset({"SecretDigest", "SecretSealed", "SealedWith"}))

    with pytest.raises(FilterTypeError) as told:
        compile_filter('SecretDigest matches "^0"', tokens)

    assert "couldn't find key" in told.value.text
    assert "did you mean" not in told.value.text


def test_only_what_is_there_can_be_hidden() -> None:
    with pytest.raises(ValueError, match="Datum has no field Nope to hide"):
        FilterSubject(Datum, hidden=frozenset({"Nope"}))


def test_a_joined_field_is_read_as_it_is_told() -> None:
    jobs = {"web": Job(id="web", type="batch")}
    allocations = FilterSubject(
        Allocation,
        joined=(
            JoinedField("Job", Job | None, lambda allocation: jobs.get(allocation.job_id)),
            # Decoded apart: the type of the field is one of msgspec's own.
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


def test_a_default_of_a_field_is_no_part_of_its_kind() -> None:
    assert compile_filter("Unset is nil", Datum).accepts(DATUM)
