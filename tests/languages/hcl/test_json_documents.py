"""The JSON form of documents (reference section 3)."""

import pytest

from tests.languages.hcl.evaluations import find_errors, list_errors, read_job


@pytest.mark.parametrize(
    ("text", "job"),
    [
        ('{"job":{"shop":{"group":{"web":{"count":2}}}}}', {"group": [("web", {"count": 2})]}),
        ('\n {"job":{"shop":{}}}', {}),
        ('{"job":[{"shop":{"type":"batch"}}]}', {"type": "batch"}),
        ('{"job":{"shop":{"constraint":[{"value":"a"},{"value":"b"}]}}}', {"constraint": [({"value": "a"},), ({"value": "b"},)]}),
        ('{"job":{"shop":{"group":[{"a":{}},{"b":{}}]}}}', {"group": [("a", {}), ("b", {})]}),
        ('{"job":{"shop":{"group":{"a":[{"count":1},{"count":2}]}}}}', {"group": [("a", {"count": 1}), ("a", {"count": 2})]}),
        ('{"job":{"shop":{"update":null,"type":null}}}', {"type": None}),
        ('{"job":{"shop":{"meta":{"a":"b"}}}}', {"meta": [({"a": "b"},)]}),
        ('{"job":{"shop":{"a":[1,{"x":"${1 + 1}"}],"b":"${attr.x}-y"}}}', {"a": [1, {"x": 2}], "b": "${attr.x}-y"}),
        ('{"job":{"shop":{"a":{"${1}k":true}}}}', {"a": {"1k": True}}),
        ('{"job":{"shop":{"a":"x\\n\\u00e9\\"${1}"}}}', {"a": 'x\né"1'}),
        ('{"job":{"shop":{"a":"$${x}"}}}', {"a": "${x}"}),
        ('{"//":"comment","job":{"shop":{"//":"comment"}}}', {}),
        ('{"variable":{"v":{"type":"list(number)","default":["1"]}},"job":{"shop":{"a":"${var.v}"}}}', {"a": [1]}),
        ('{"locals":{"l":"${upper(\\"x\\")}"},"job":{"shop":{"a":"${local.l}"}}}', {"a": "X"}),
        ('{"variables":{"v":1.5},"job":{"shop":{"a":"${var.v * 2}"}}}', {"a": 3}),
        (
            '{"job":{"shop":{"dynamic":{"constraint":{"for_each":[1,2],"iterator":"it","content":{"value":"${it.value}"}}}}}}',
            {"constraint": [({"value": 1},), ({"value": 2},)]},
        ),
        (
            '{"job":{"shop":{"dynamic":{"group":{"for_each":["a"],"labels":["g-${group.value}"],"content":{"count":1}}}}}}',
            {"group": [("g-a", {"count": 1})]},
        ),
        (
            '{"job":{"shop":{"group":{"g":{"task":{"t":{"config":{"image":"i","mount":[{"a":1}]}}}}}}}}',
            {"group": [("g", {"task": [("t", {"config": [({"image": "i", "mount": [{"a": 1}]},)]})]})]},
        ),
    ],
)  # fmt: skip
def test_blocks_are_objects_below_their_labels(text: str, job: object) -> None:
    assert job == read_job(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"ID": "x"}', 'job.hcl:1:2: no argument "ID" is allowed at the top level'),
        ('{"job":{"x":{"foo":1}}}', 'job.hcl:1:14: no argument "foo" is allowed in job'),
        ('{"job":"x"}', 'job.hcl:1:8: expected a JSON object for the block "job"'),
        ('{"job":{"x":1}}', 'job.hcl:1:13: expected a JSON object for the block "job"'),
        ('{"job":{"x":{"a":1,"a":2}}}', 'job.hcl:1:20: the argument "a" occurs twice'),
        ('{"job":{"x":{"a":"${"}}}', 'job.hcl:1:21: expected a value, found the end of the file'),
        ('{"job":{"x":{"a":"b ${nope()}"}}}', 'job.hcl:1:23: no function "nope" exists'),
        ('{"job":{"x":{"a":"\\n${nope()}"}}}', 'job.hcl:1:18: no function "nope" exists'),
        ('{"job":{"x":{"a":1,}}}', 'job.hcl:1:19: a "," is before the }'),
        ('{"job":{"x":{"a":[1,]}}}', 'job.hcl:1:20: a "," is before the ]'),
        ('{"job":{"x":{"a":01}}}', 'job.hcl:1:18: 01 is not a JSON value'),
        ('{"job":{"x":{a:1}}}', 'job.hcl:1:14: a key needs double quotes'),
        ('{"job":{"x":{"a" 1}}}', 'job.hcl:1:18: expected ":" after the key, found "1"'),
        ('{"job":{}} x', 'job.hcl:1:12: expected the end of the file, found "x"'),
        ('{"job":{"x":{"a":"\\ud800"}}}', "job.hcl:1:18: this string has half of a surrogate pair"),
        ('{"job":{"x":{"a":"\\q"}}}', "job.hcl:1:19: this escape is unknown"),
        ('{"job":{"x":{"a":1e999}}}', "job.hcl:1:18: the exponent is outside -400 to 400"),
        ('{"job":{"x":{"a":' + "[" * 101, "job.hcl:1:115: nested more than 100 deep"),
        ('{"variable":{"v":{"type":"lst"}},"job":{"x":{}}}', 'job.hcl:1:26: no type "lst" exists'),
    ],
)  # fmt: skip
def test_a_wrong_json_document_is_an_error(text: str, message: str) -> None:
    assert message == list_errors(text)[0]


def test_a_job_in_the_form_of_the_api_gets_the_advice_not_to_parse_it() -> None:
    assert "a document in the form of the API needs no parsing" in find_errors('{"ID": "x", "Name": "x"}')


def test_a_missing_bracket_names_the_opening_one() -> None:
    assert '"[" was opened at' not in find_errors('{"job":[1')
    assert "the list was opened at: job.hcl:1:8" in find_errors('{"job":[1;')
    assert find_errors('{"job":[1').startswith("job.hcl:1:8: the [ that opens here is not closed")


def test_all_wrong_templates_of_a_json_document_are_errors() -> None:
    assert list_errors('{"job":{"x":{"a":"${","b":["${1 +}"]}}}') == [
        "job.hcl:1:21: expected a value, found the end of the file",
        'job.hcl:1:34: expected a value, found "}"',
    ]
