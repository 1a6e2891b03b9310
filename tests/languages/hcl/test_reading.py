"""Blocks are found however they were written, and what stands in their place is told."""

import pytest

from wharf.languages.hcl import Attribute, Block, Body, HclError, HclStructureError, TextValue, parse_document
from wharf.languages.hcl.queries import find_attributes, find_blocks, require_text, require_texts

READ = Body((Attribute("policy", TextValue("read")),))


@pytest.mark.parametrize(
    "text",
    [
        'namespace "web" { policy = "read" }',
        'namespace web { policy = "read" }',
        'namespace { web { policy = "read" } }',
        'namespace { "web" = { policy = "read" } }',
        'namespace = { web = { policy = "read" } }',
        'namespace = [{ web = [{ policy = "read" }] }]',
        '{"namespace": {"web": {"policy": "read"}}}',
        '{"namespace": [{"web": {"policy": "read"}}]}',
        '{"namespace": [{"web": [{"policy": "read"}]}]}',
    ],
)
def test_a_block_with_a_label_is_found_in_every_spelling(text: str) -> None:
    assert [Block("namespace", (TextValue("web"),), READ)] == list(
        find_blocks(parse_document(text), "namespace", label_count=1)
    )


@pytest.mark.parametrize(
    "text",
    [
        'node { policy = "read" }',
        'node = { policy = "read" }',
        '{"node": {"policy": "read"}}',
        '{"node": [{"policy": "read"}]}',
    ],
)
def test_a_block_without_labels_is_found_in_every_spelling(text: str) -> None:
    assert [Block("node", (), READ)] == list(find_blocks(parse_document(text), "node", label_count=0))


def test_blocks_of_one_name_come_in_the_order_of_the_text_and_others_are_passed_over() -> None:
    document = parse_document('a "1" {} b {} a { "2" {} "3" {} } a = null')

    found = [block.labels[0].value for block in find_blocks(document, "a", label_count=1)]
    assert found == ["1", "2", "3"]


@pytest.mark.parametrize(
    ("text", "labels", "error"),
    [
        ('node = "read"', 0, 'At 1:1: expected a block, found "node = ..."; write node { ... }'),
        ('node "x" {}', 0, 'At 1:6: node takes no label; "x" is one too many'),
        ('node "x" "y" {}', 1, 'At 1:10: node takes one label; "y" is one too many'),
        ('node { policy = "read" }', 1, 'At 1:8: expected a block, found "policy = ..."; write node "label" { ... }'),
        ("node = [1]", 0, 'At 1:1: expected a block, found "node = ..."; write node { ... }'),
    ],
)
def test_what_stands_in_the_place_of_a_block_is_told(text: str, labels: int, error: str) -> None:
    with pytest.raises(HclStructureError) as told:
        list(find_blocks(parse_document(text), "node", label_count=labels))

    assert error == told.value.text


def value_of(text: str) -> Attribute:
    return find_attributes(parse_document(text), "a")[0]


def test_attributes_are_found_by_name_and_null_is_none() -> None:
    assert [Attribute("a", TextValue("x")), Attribute("a", TextValue("y"))] == find_attributes(
        parse_document('a = "x" b = 1 a = null a = "y"'), "a"
    )
    with pytest.raises(HclStructureError, match=r"a is no block; write a = \.\.\."):
        find_attributes(parse_document("a {}"), "a")


def test_a_text_and_a_list_of_texts_are_asked_for_and_one_text_is_a_list_of_one() -> None:
    assert TextValue("x") == require_text(value_of('a = "x"').value, "a")
    assert (TextValue("x"), TextValue("y")) == require_texts(value_of('a = ["x", "y"]').value, "a")
    assert (TextValue("x"),) == require_texts(value_of('a = "x"').value, "a")
    for text, error in (("a = [1]", "At 1:6: each of a is a text"), ("a = {}", "At 1:5: a is a list of texts")):
        with pytest.raises(HclError) as told:
            require_texts(value_of(text).value, "a")
        assert told.value.text.startswith(error)
    with pytest.raises(HclStructureError, match="a is a text; write it in quotes"):
        require_text(value_of("a = 1").value, "a")
