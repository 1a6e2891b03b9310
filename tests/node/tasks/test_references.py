"""References in texts of a job: their values, and the limits of the results."""

import tracemalloc

import pytest

from wharf.node.tasks.interpolation import (
    MAX_MISSING_REFERENCES,
    MAX_RESOLVED_CHARACTERS,
    MAX_TOTAL_CHARACTERS,
    ReferenceValues,
    ResolutionLimit,
    describe_missing,
    find_zero_byte,
    resolve_document,
    resolve_text,
)

LARGE_VALUE = "x" * 100_000
VALUES = ReferenceValues({"node.class": "big", "LARGE": LARGE_VALUE, "HALF": "y" * (MAX_RESOLVED_CHARACTERS // 2)})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", "plain"),
        ("a ${node.class} one", "a big one"),
        ("${ node.class }", "big"),
        ("$${node.class}", "${node.class}"),
        ('${env["HALF"]}', VALUES.values["HALF"]),
        ("${unknown}", "${unknown}"),
        ("${HALF}${HALF}", VALUES.values["HALF"] * 2),
    ],
)
def test_references_are_replaced_by_their_values(text: str, expected: str) -> None:
    assert expected == resolve_text(text, VALUES)


def test_a_result_above_the_limit_leaves_the_text_unchanged_and_names_it() -> None:
    limit = ResolutionLimit()

    assert "${HALF}${HALF}z" == resolve_text("${HALF}${HALF}z", VALUES, None, limit, 'env "A"')
    assert limit.problem == (
        'env "A" has more than 131072 characters after its references are replaced: refer to shorter values, or write '
        "the values to a file with a template"
    )


def test_a_text_that_refers_to_a_large_value_a_thousand_times_needs_no_memory_for_the_result() -> None:
    text = "${LARGE}" * 1_000
    tracemalloc.start()
    try:
        resolve_text(text, VALUES)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak_bytes < 1_000_000


def test_many_texts_have_a_limit_together() -> None:
    limit, missing = ResolutionLimit(), list[str]()
    document = {"args": ["${HALF}"] * 16, "more": ["${HALF}"]}

    resolved = resolve_document(document, VALUES, missing, limit)

    assert resolved == {"args": [VALUES.values["HALF"]] * 16, "more": ["${HALF}"]}
    assert limit.problem == (
        f"together with the texts before it, config.more[0] has more than {MAX_TOTAL_CHARACTERS} characters after its "
        "references are replaced: refer to shorter values, or write the values to a file with a template"
    )


def test_keys_of_a_document_count_too() -> None:
    limit = ResolutionLimit()

    resolve_document({"labels": {"${LARGE}${LARGE}": "1"}}, VALUES, [], limit)

    assert limit.problem.startswith("a key of config.labels has more than")


def test_a_text_without_references_has_no_limit_here() -> None:
    limit = ResolutionLimit(10)

    assert LARGE_VALUE == resolve_text(LARGE_VALUE, VALUES, None, limit)
    assert "" == limit.problem


def test_an_error_lists_at_most_twenty_unknown_references() -> None:
    text = describe_missing([f"${{a{number}}}" for number in range(MAX_MISSING_REFERENCES + 5)])

    assert text.startswith("unknown reference: ${a0}, ${a1}, ")
    assert text.endswith("${a19} and 5 more")


@pytest.mark.parametrize("reference", ["${X:-y}", "${#X}", "${X%.txt}"])
def test_an_unknown_reference_that_a_shell_knows_is_explained_with_its_escapes(reference: str) -> None:
    text = describe_missing(["${nope}", reference])

    yaml, hcl = f"$${reference[1:]}", f"$$${reference[1:]}"
    assert text.startswith(f"unknown reference: ${{nope}}, {reference}; ")
    assert text.endswith(f"write {yaml} in YAML and JSON, or {hcl} in HCL")
    assert resolve_text(yaml, VALUES) == reference


def test_an_unknown_reference_that_no_shell_knows_has_no_advice_for_shells() -> None:
    assert describe_missing(["${attr.zzz}"]) == "unknown reference: ${attr.zzz}"


def test_a_zero_byte_is_found_anywhere_in_a_document() -> None:
    assert "" == find_zero_byte({"args": ["a", {"b": 1}]})
    assert find_zero_byte({"args": ["a", {"b": "c\0"}]}).startswith("config.args[1].b contains a zero byte")
