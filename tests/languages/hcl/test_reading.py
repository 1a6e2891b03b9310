"""Finding blocks and attributes in every notation, and errors for items of the wrong type."""

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


def test_blocks_of_one_type_are_found_in_the_order_of_the_text() -> None:
    document = parse_document('a "1" {} b {} a { "2" {} "3" {} } a = null')

    found = [block.labels[0].value for block in find_blocks(document, "a", label_count=1)]
    assert found == ["1", "2", "3"]


@pytest.mark.parametrize(
    ("text", "labels", "error"),
    [
        ('node = "read"', 0, 'At 1:1: expected a block, found "node = ..."; write node { ... }'),
        ('node "x" {}', 0, 'At 1:6: node takes no label; remove "x"'),
        ('node "x" "y" {}', 1, 'At 1:10: node takes one label; remove "y"'),
        ('node { policy = "read" }', 1, 'At 1:8: expected a block, found "policy = ..."; write node "label" { ... }'),
        ("node = [1]", 0, 'At 1:1: expected a block, found "node = ..."; write node { ... }'),
    ],
)
def test_an_item_that_is_not_a_block_is_reported(text: str, labels: int, error: str) -> None:
    with pytest.raises(HclStructureError) as raised:
        list(find_blocks(parse_document(text), "node", label_count=labels))

    assert error == raised.value.text


def value_of(text: str) -> Attribute:
    return find_attributes(parse_document(text), "a")[0]


def test_attributes_are_found_by_name_and_null_counts_as_absent() -> None:
    assert [Attribute("a", TextValue("x")), Attribute("a", TextValue("y"))] == find_attributes(
        parse_document('a = "x" b = 1 a = null a = "y"'), "a"
    )
    with pytest.raises(HclStructureError, match=r"a is not a block; write a = \.\.\."):
        find_attributes(parse_document("a {}"), "a")


def test_a_text_or_a_list_is_required_and_a_single_text_counts_as_a_list() -> None:
    assert TextValue("x") == require_text(value_of('a = "x"').value, "a")
    assert (TextValue("x"), TextValue("y")) == require_texts(value_of('a = ["x", "y"]').value, "a")
    assert (TextValue("x"),) == require_texts(value_of('a = "x"').value, "a")
    for text, error in (
        ("a = [1]", "At 1:6: each element of a must be a text"),
        ("a = {}", "At 1:5: a must be a list of texts"),
    ):
        with pytest.raises(HclError) as raised:
            require_texts(value_of(text).value, "a")
        assert raised.value.text.startswith(error)
    with pytest.raises(HclStructureError, match="a must be a text; write it in quotes"):
        require_text(value_of("a = 1").value, "a")
