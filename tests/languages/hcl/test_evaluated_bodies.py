"""What a mapper reads: attributes with values and places, blocks in order, and errors that it adds."""

import pytest

from tests.languages.hcl.evaluations import FREE_SCHEMA, PORTS, SCHEMA, evaluate_text
from wharf.languages.hcl.diagnostics import DocumentErrors
from wharf.languages.hcl.documents import EvaluatedAttribute, evaluate_document, parse_document
from wharf.languages.hcl.schemas import find_owners


def read_attribute(text: str, name: str = "a") -> EvaluatedAttribute:
    """Return an attribute of a document that may hold anything."""
    return evaluate_text(text, FREE_SCHEMA).body.attributes[name]


def test_an_attribute_has_the_places_of_its_name_and_value() -> None:
    attribute = read_attribute('b = 1\n  a = upper("x")\n')

    assert ("job.hcl:2:3", "job.hcl:2:7") == (str(attribute.name_place), str(attribute.place))
    assert "X" == attribute.value


@pytest.mark.parametrize(
    ("value", "is_literal"),
    [
        ("{ b = 1 }", True),
        ("{}", True),
        ("({ b = 1 })", False),
        ("merge({ b = 1 })", False),
        ("[{}]", False),
        ('"x"', False),
    ],
)
def test_an_object_literal_is_distinguished_from_other_objects(value: str, is_literal: bool) -> None:
    assert is_literal is read_attribute(f"a = {value}\n").is_object_literal


@pytest.mark.parametrize(
    ("path", "place"),
    [((), "1:5"), ((1,), "1:9"), ((1, "k"), "1:15"), ((1, "x"), "1:9"), ((5,), "1:5"), ((0, 0), "1:6")],
)
def test_an_item_of_a_literal_has_a_place(path: tuple[int | str, ...], place: str) -> None:
    assert f"job.hcl:{place}" == str(read_attribute("a = [1, { k = 2 }]\n").get_item_place(*path))


def test_a_block_has_the_places_of_its_header_and_labels() -> None:
    block = evaluate_text('job "x" {\n}\n').body.blocks[0]

    assert ("job.hcl:1:1", "job.hcl:1:5") == (str(block.place), str(block.label_places[0]))
    assert 'job "x"' == block.place.source.text[block.place.start : block.place.end]


def test_blocks_are_listed_in_the_order_of_the_text() -> None:
    body = evaluate_text("b {\n x = 1\n}\nc {\n}\nb {\n x = 2\n}\n", FREE_SCHEMA).body

    assert ["b", "c", "b"] == [block.type for block in body.blocks]
    assert [1, 2] == [block.body.attributes["x"].value for block in body.list_blocks("b")]


def test_a_value_with_an_error_is_marked_as_failed() -> None:
    evaluated = evaluate_document(parse_document('job "x" {\n a = nope()\n b = 1\n}\n'), SCHEMA, ports=PORTS)
    attributes = evaluated.body.blocks[0].body.attributes

    assert (True, False) == (attributes["a"].is_failed, attributes["b"].is_failed)


def test_errors_of_a_mapper_are_reported_with_those_of_the_evaluation() -> None:
    evaluated = evaluate_document(
        parse_document('job "x" {\n a = nope()\n b = 1\n c = nada()\n}\n'), SCHEMA, ports=PORTS
    )
    place = evaluated.body.blocks[0].body.attributes["b"].place
    evaluated.diagnostics.add(place.source, place.start, place.end, "expected a text", "put it in quotes")

    with pytest.raises(DocumentErrors) as raised:
        evaluated.diagnostics.raise_if_any()
    assert [2, 3, 4] == [diagnostic.place.location.line for diagnostic in raised.value.diagnostics]


def test_a_schema_finds_the_blocks_that_allow_a_name() -> None:
    assert (["group"], ["task"], []) == (
        find_owners(SCHEMA, "count", is_block=False),
        find_owners(SCHEMA, "config", is_block=True),
        find_owners(SCHEMA, "nope", is_block=True),
    )
