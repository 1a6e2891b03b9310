"""The functions (reference section 11), row by row."""

import pytest

from tests.languages.hcl.evaluations import evaluate, evaluate_value, find_failure
from wharf.languages.hcl.call_nodes import UNOFFERED_FUNCTIONS
from wharf.languages.hcl.functions import FUNCTIONS
from wharf.languages.hcl.values import NUMBER, STRING, CollectionType, HclList, HclMap, HclSet, HclTuple

FAMILY = "👨\u200d👩\u200d👧"

NUMBERS = [
    ("abs(-1.5)", 1.5),
    ('abs("-2")', 2),
    ("ceil(1.2)", 2),
    ("ceil(-1.2)", -1),
    ("floor(1.8)", 1),
    ("floor(-1.2)", -2),
    ("log(8, 2)", 3),
    ("log(1000, 10)", 3),
    ("log(16, 0.5)", -4),
    ("log(50, 10)", 1.6989700043360185),
    ("max(1, 3, 2)", 3),
    ("min(1, 3, 2)", 1),
    ("pow(2, 10)", 1024),
    ("pow(2, -1)", 0.5),
    ("pow(4, 0.5)", 2),
    ("pow(0, 0)", 1),
    ("pow(10, 30) == 1e30", True),
    ("pow(0.5, 2)", 0.25),
    ("signum(-3)", -1),
    ("signum(0)", 0),
    ("signum(3)", 1),
    ('parseint("ff", 16)', 255),
    ('parseint("FF", 16)', 255),
    ('parseint("-101", 2)', -5),
    ('parseint("Z", 62)', 61),
    ('parseint("z", 62)', 35),
]
TEXTS = [
    (r'chomp("a\n\r\n\n")', "a"),
    (r'chomp("a\nb")', "a\nb"),
    (r'indent(2, "a\n\nb\n")', "a\n  \n  b\n  "),
    ('join(", ", ["a", 1, true])', "a, 1, true"),
    ('join("-", ["a"], ["b"])', "a-b"),
    ('join("-", [])', ""),
    ('split(",", "a,b,")', ["a", "b", ""]),
    ('split("", "abc")', ["a", "b", "c"]),
    ('split(",", "")', [""]),
    ('lower("ÀB")', "àb"),
    ('upper("straße")', "STRAßE"),
    ("upper(1.50)", "1.5"),
    ('title("hello big world")', "Hello Big World"),
    ('title("it\'s a-b éa")', "It'S A-B Éa"),
    ('replace("a/b/c", "/", "-")', "a-b-c"),
    ('replace("a+b", "/+/", "-")', "a+b"),
    ('regex_replace("a1b22", "[0-9]+", "#")', "a#b#"),
    ('regex_replace("ab", "(?P<x>a)(b)", "$2$${x}$$")', "ba$"),
    ('regex_replace("ab", "(?P<x>a)", "$x-")', "a-b"),
    ('regex_replace("ab", "(a)", "$1")', "ab"),
    ('reverse("abc")', "cba"),
    ('strrev("abc")', "cba"),
    (f'reverse("a{FAMILY}")', f"{FAMILY}a"),
    (f'strlen("{FAMILY}")', 1),
    ('strlen("e\u0301")', 1),
    ('strlen("")', 0),
    ("strlen(123)", 3),
    ('substr("hello", 1, 3)', "ell"),
    ('substr("hello", -3, 2)', "ll"),
    ('substr("hello", 2, -1)', "llo"),
    ('substr("hello", 9, 1)', ""),
    ('substr("hello", 3, 99)', "lo"),
    (f'substr("a{FAMILY}b", 1, 1)', FAMILY),
    ('trim("xyaxy", "xy")', "a"),
    ('trim("a", "")', "a"),
    ('trimprefix("aab", "a")', "ab"),
    ('trimsuffix("abb", "b")', "ab"),
    ('trimspace("\u00a0 a\\t\\n\u2003")', "a"),
]
FORMATS = [
    ('format("%s-%s", "a", 1.50)', "a-1.5"),
    ('format("%s", true)', "true"),
    (r'format("%q", "a\"<é")', '"a\\"<é"'),
    ('format("%d", 5)', "5"),
    ('format("%d", "5")', "5"),
    ('format("%5d|%-5d|%05d|%+d|% d", 1, 2, 3, 4, 5)', "    1|2    |00003|+4| 5"),
    ('format("%05d", -3)', "-0003"),
    ('format("%f", 1.5)', "1.500000"),
    ('format("%.2f", 2 / 3)', "0.67"),
    ('format("%8.3f|", 3.14159)', "   3.142|"),
    ('format("%e", 12345.678)', "1.234568e+04"),
    ('format("%e %.2E", 0, 0.0)', "0.000000e+00 0.00E+00"),
    ('format("%E", 0.00012)', "1.200000E-04"),
    ('format("%g", 100000)', "100000"),
    ('format("%g", 1234567)', "1.234567e+06"),
    ('format("%G", 1e-7)', "1E-07"),
    ('format("%g", 123456789012345678901234567890123)', "1.23456789012345678901234567890123e+32"),
    ('format("%b %o %x %X", 5, 8, 255, 255)', "101 10 ff FF"),
    ('format("%t", "true")', "true"),
    ('format("%v %v %v %v", "a", 1.50, true, null)', "a 1.5 true null"),
    ('format("%v", [1, {a = null}])', '[1,{"a":null}]'),
    ('format("%#v", "a")', '"a"'),
    ('format("100%%")', "100%"),
    ('format("%[2]s %[1]s %[2]s", "a", "b")', "b a b"),
    ('format("%[2]s%s", "a", "b", "c")', "bc"),
    ('format("%5s|%-5s|", "ab", "cd")', "   ab|cd   |"),
    ('format("%.2s", "abc")', "ab"),
    ('formatlist("%s-%d", ["a", "b"], [1, 2])', ["a-1", "b-2"]),
    ('formatlist("%s-%s", ["a", "b"], "x")', ["a-x", "b-x"]),
    ('formatlist("%s", [])', []),
    ('formatlist("%s", "a")', ["a"]),
]
LISTS = [
    ("chunklist([1, 2, 3], 2)", [[1, 2], [3]]),
    ("chunklist([1, 2], 0)", [[1, 2]]),
    ("chunklist([], 2)", []),
    ('coalesce(null, "", "a")', ""),
    ('coalesce(null, 1, "a")', "1"),
    ("coalescelist([], [1], [2])", [1]),
    ('compact(["a", "", null, "b"])', ["a", "b"]),
    ('concat([1], ["a"], [])', [1, "a"]),
    ('contains(["a", "b"], "a")', True),
    ('contains(["1"], 1)', False),
    ("contains([null], null)", True),
    ("contains([[1]], [1])", True),
    ('distinct(["b", "a", "b"])', ["b", "a"]),
    ('element(["a", "b", "c"], 4)', "b"),
    ('element(["a", "b", "c"], -1)', "c"),
    ('flatten([["a", ["b"]], [], "c"])', ["a", "b", "c"]),
    ('index(["a", "b"], 1)', "b"),
    ("length([1, 2])", 2),
    ("length(convert({a = 1}, map(number)))", 1),
    ("length(convert([1, 1], set(number)))", 1),
    ("range(3)", [0, 1, 2]),
    ("range(0)", []),
    ("range(1, 3)", [1, 2]),
    ("range(3, 1)", [3, 2]),
    ("range(1, 2, 0.5)", [1, 1.5]),
    ("range(5, 0, -2)", [5, 3, 1]),
    ("range(-2)", [0, -1]),
    ("length(range(1024))", 1024),
    ('setintersection(["a", "b", "c"], ["c", "b"])', ["b", "c"]),
    ('setintersection(["1"], [1])', ["1"]),
    ('setproduct(["a", "b"], [1, 2])', [["a", 1], ["a", 2], ["b", 1], ["b", 2]]),
    ('setproduct(["a"], [])', []),
    ('setunion(["b"], ["a", 1])', ["1", "a", "b"]),
    ('slice(["a", "b", "c"], 1, 3)', ["b", "c"]),
    ('slice(["a"], 1, 1)', []),
    ("sort([2, 10, 1])", ["1", "10", "2"]),
    ('sort(["é", "z", "Z"])', ["Z", "z", "é"]),
]
MAPS = [
    ("keys({b = 1, a = 2})", ["a", "b"]),
    ("values({b = 1, a = 2})", [2, 1]),
    ('lookup({a = 1}, "a", 2)', 1),
    ('lookup({a = 1}, "b", "x")', "x"),
    ('lookup(convert({a = 1}, map(number)), "b", "2")', 2),
    ("merge({a = {x = 1}, b = 1}, {a = {y = 2}})", {"a": {"y": 2}, "b": 1}),
    ("merge({a = 1}, null)", {"a": 1}),
    ("merge()", {}),
    ('zipmap(["a", "b"], [1, 2])', {"a": 1, "b": 2}),
]
ENCODINGS = [
    ('base64encode("é")', "w6k="),
    ('base64decode("w6k=")', "é"),
    ('urlencode("a b~-_.é/?&")', "a+b~-_.%C3%A9%2F%3F%26"),
    ('jsonencode({b = [1, 1.50, null, true], a = "<&>\\n"})', '{"a":"\\u003c\\u0026\\u003e\\n","b":[1,1.5,null,true]}'),
    ("jsonencode(null)", "null"),
    ('jsondecode("{\\"a\\": [1, 2.5, null, true, \\"x\\"]}")', {"a": [1, 2.5, None, True, "x"]}),
    ('jsondecode("1")', 1),
    ('yamlencode({b = [1, "x"], a = { c = true, d = null }})', '"a":\n  "c": true\n  "d": null\n"b":\n- 1\n- "x"\n'),
    ('yamlencode({a = "x\\ny", b = "x\\ny\\n", c = "x\\ny\\n\\n"})', '"a": |-\n  x\n  y\n"b": |\n  x\n  y\n"c": |+\n  x\n  y\n\n'),
    ('yamlencode([{a = 1, b = 2}, [1, [2]]])', '- "a": 1\n  "b": 2\n- - 1\n  - - 2\n'),
    ('yamlencode({a = [], b = {}})', '"a": []\n"b": {}\n'),
    ('yamlencode("x")', '"x"\n'),
    ('yamlencode(["x\\ny"])', "- |-\n  x\n  y\n"),
    ('yamlencode({a = [{b = "x\\ny"}]})', '"a":\n- "b": |-\n    x\n    y\n'),
    ('yamldecode("a: yes\\nb: on\\nc: no")', {"a": True, "b": True, "c": False}),
    ('yamldecode("~")', None),
    ('yamldecode("")', None),
    ('yamldecode("[0x1F, 0o17, 017, 1_000, 1.5, -2, .5, 1e3]")', [31, 15, 17, "1_000", 1.5, -2, 0.5, 1000]),
    ('yamldecode("2020-01-01")', "2020-01-01T00:00:00Z"),
    ('yamldecode("a: &x [1]\\nb: *x")', {"a": [1], "b": [1]}),
    ('yamldecode("a: &x {k: 1, l: 2}\\nb:\\n  <<: *x\\n  l: 3")', {"a": {"k": 1, "l": 2}, "b": {"k": 1, "l": 3}}),
    ('yamldecode("\'yes\'")', "yes"),
    ('yamldecode("!!str 5")', "5"),
    ('yamldecode("on: 1\\n5: 2")', {"on": 1, "5": 2}),
    ('csvdecode("a,b\\n1,\\"x,y\\"\\n2,\\n")', [{"a": "1", "b": "x,y"}, {"a": "2", "b": ""}]),
    ('csvdecode("a,b\\n")', []),
]  # fmt: skip
HASHES = [
    ('md5("a")', "0cc175b9c0f1b6a831c399e269772661"),
    ('sha1("a")', "86f7e437faa5a7fce15d1ddcb9eaeaea377667b8"),
    ('sha256("a")', "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb"),
    ('substr(sha512("a"), 0, 16)', "1f40fc92da241694"),
    ("uuidv4()", "00010203-0405-4607-8809-0a0b0c0d0e0f"),
    ('uuidv5("dns", "example.com")', "cfbff0d1-9375-5685-968c-48ce8b15ae17"),
    ('uuidv5("6ba7b810-9dad-11d1-80b4-00c04fd430c8", "example.com")', "cfbff0d1-9375-5685-968c-48ce8b15ae17"),
]
NETWORKS = [
    ('cidrhost("10.0.1.5/8", 1)', "10.0.0.1"),
    ('cidrhost("10.0.0.0/24", -1)', "10.0.0.255"),
    ('cidrhost("fd00::/64", 16)', "fd00::10"),
    ('cidrnetmask("10.0.0.0/12")', "255.240.0.0"),
    ('cidrsubnet("10.0.0.0/16", 8, 2)', "10.0.2.0/24"),
    ('cidrsubnet("fd00:fd12::/48", 16, 162)', "fd00:fd12:0:a2::/64"),
    ('cidrsubnets("10.0.0.0/16", 4, 4, 8, 4)', ["10.0.0.0/20", "10.0.16.0/20", "10.0.32.0/24", "10.0.48.0/20"]),
]
TIMES = [
    ('formatdate("YYYY YY MMMM MMM MM M DD D EEEE EEE", "2018-01-02T23:12:01Z")', "2018 18 January Jan 01 1 02 2 Tuesday Tue"),
    ('formatdate("hh h HH H AA aa mm m ss s", "2018-01-02T23:05:01Z")', "23 23 11 11 PM pm 05 5 01 1"),
    ('formatdate("H h AA", "2018-01-02T00:05:01Z")', "12 0 AM"),
    ('formatdate("Z ZZZ ZZZZ ZZZZZ", "2018-01-02T23:12:01+02:30")', "+02:30 +0230 +0230 +02:30"),
    ('formatdate("ZZZ ZZZZ ZZZZZ", "2018-01-02T23:12:01Z")', "UTC +0000 +00:00"),
    ("formatdate(\"'at' h 'o''clock' ''\", \"2018-01-02T23:12:01Z\")", "at 23 o'clock '"),
    ('timeadd("2017-11-22T00:00:00Z", "10m")', "2017-11-22T00:10:00Z"),
    ('timeadd("2017-11-22T00:00:00+01:00", "-1h30m")', "2017-11-21T22:30:00+01:00"),
    ('timeadd("2017-11-22T00:00:00Z", "1.5h")', "2017-11-22T01:30:00Z"),
    ('timeadd("2016-02-28T23:59:59Z", "1s")', "2016-02-29T00:00:00Z"),
]  # fmt: skip
TYPES = [
    ('convert("5", number)', 5),
    ('try(jsondecode("{"), "x")', "x"),
    ("try(null, 1)", None),
    ("try({a = 1}.a, 2)", 1),
    ("can({a = 1}.b)", False),
    ("can(1 + 1)", True),
    ("can(var.nope)", False),
]


@pytest.mark.parametrize(
    ("text", "value"),
    [*NUMBERS, *TEXTS, *FORMATS, *LISTS, *MAPS, *ENCODINGS, *HASHES, *NETWORKS, *TIMES, *TYPES],
)
def test_a_function_has_its_result(text: str, value: object) -> None:
    assert value == evaluate(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("log(0, 2)", "only a number above zero has a logarithm"),
        ("log(1, 1)", "the base is a number above zero other than 1"),
        ("max()", "argument 1 (n) is missing"),
        ("pow(10, 400)", "the number is larger than 1.8e308"),
        ("pow(10, 1e300)", "the number is larger than 1.8e308"),
        ("pow(0, -1)", "0 has no negative power"),
        ("pow(-1, 0.5)", "a negative number has no power with a fraction"),
        ("signum(1.5)", "i: expected a whole number, got a fraction"),
        ('parseint("x", 10)', "the text is not a whole number in base 10"),
        ('parseint("", 10)', "the text is not a whole number in base 10"),
        ("parseint(5, 10)", "expected a text, got a number"),
        ('parseint("1", 1)', "the base is between 2 and 62"),
        ('join(",", ["a", null])', "item 1 is null"),
        ('join(",", [[]])', "item 0: expected a text, got a list"),
        ("upper(null)", "s must not be null"),
        ("upper([])", "s: expected a text, got a list"),
        ("reverse([1])", "s: expected a text, got a list"),
        ('indent(-1, "a")', "the number of spaces is not negative"),
        ('regex_replace("a", "(", "")', "invalid pattern: missing ): ("),
        ('regex_replace("a", "(?=a)", "")', "invalid pattern: invalid perl operator: (?="),
        ('format("%s")', '"%s" needs argument 1, and there are 0'),
        ('format("%s", 1, 2)', "too many arguments: the format uses 1 of 2"),
        ('format("%y", 1)', 'no verb "%y" exists'),
        ('format("%")', 'no verb "%" exists'),
        ('format("%s", [1])', "%s: a list or map has no text"),
        ('format("%s", null)', "%s: null has no text"),
        ('format("%d", 1.5)', "%d: expected a whole number, got a fraction"),
        ('format("%d", "x")', "%d: expected a number, got a text that is not a number"),
        ('format("%[0]s", 1)', '"%[0]s" needs argument 0, and there are 1'),
        ('formatlist("%s%s", ["a"], ["b", "c"])', "the lists have 1 and 2 items"),
        ("chunklist([1], -1)", "the size of a chunk is not negative"),
        ("coalesce(null, null)", "every argument is null"),
        ("coalesce([1], 2)", "the arguments have no common type"),
        ("coalescelist([], [])", "every list is empty"),
        ("concat([1], null)", "lists must not be null"),
        ('contains("abc", "a")', "list: expected a list, got a text"),
        ("element([], 0)", "the list is empty"),
        ('index(["a"], "a")', "index: expected a number, got a text that is not a number"),
        ('index(["a"], 1)', "index 1 is outside the list of 1 items"),
        ('length("abc")', "a text has no length"),
        ("length({a = 1})", "an object has no length"),
        ("range(1025)", "more than 1,024 items"),
        ("range(0, 5, 0)", "the step is not zero"),
        ("range(0, 5, -1)", "the step leads away from the end"),
        ("slice([1], 2, 3)", "the start is between 0 and 1"),
        ("slice([1], 0, 2)", "the end is between 0 and 1"),
        ("slice([1, 2], 1, 0)", "the end is between 1 and 2"),
        ("sort([null])", "item 0: expected a text, got null"),
        ('lookup({a = 1}, "b")', "argument 3 (default) is missing"),
        ('lookup({a = 1}, "b", null)', "default must not be null"),
        (
            'lookup(convert({a = 1}, map(number)), "b", "x")',
            "default: expected a number, got a text that is not a number",
        ),
        ('zipmap(["a"], [1, 2])', "there are 1 keys and 2 values"),
        ("keys([1])", "map: expected a map or object, got a list"),
        ('base64decode("!")', "the text is not base64"),
        ('base64decode("/w==")', "the decoded bytes are not UTF-8"),
        ('jsondecode("{")', "not JSON at line 1, column 2: Expecting property name enclosed in double quotes"),
        ('jsondecode("NaN")', "NaN is not JSON"),
        ('yamldecode("a: 1\\n---\\nb: 2")', "the text holds several documents, and only one is allowed"),
        ('yamldecode("*x")', 'no anchor "x" exists'),
        ('yamldecode(".inf")', "infinity and NaN are no numbers here"),
        ('csvdecode("a,b\\n1")', "line 2 has 1 values, and the first has 2"),
        ('csvdecode("")', "the text has no line with the names of the columns"),
        ('csvdecode("a,a")', 'the column "a" occurs twice'),
        ('bcrypt("a", 3)', "the cost is between 4 and 31"),
        ('uuidv5("x", "y")', "the namespace is dns, url, oid, x500 or a UUID"),
        ('rsadecrypt("x", "y")', "the encrypted text is not base64"),
        ('rsadecrypt("eA==", "y")', "the key is not a private key in PEM form without a password"),
        ('cidrhost("10.0.0.0", 1)', "the prefix is an address and a length, such as 10.0.0.0/16"),
        ('cidrhost("10.0.0.0/30", 4)', "the prefix has 4 addresses"),
        ('cidrsubnet("10.0.0.0/16", 17, 0)', "more bits are between 0 and 16"),
        ('cidrsubnet("10.0.0.0/16", 1, 2)', "1 more bits give the numbers 0 to 1"),
        ('cidrsubnets("10.0.0.0/16", 1, 1, 1)', "the prefix has no space for this subnet"),
        ('formatdate("Q", "2018-01-02T23:12:01Z")', 'the format "Q" does not exist'),
        ('formatdate("\'x", "2018-01-02T23:12:01Z")', "a quote in the format has no end"),
        ('formatdate("YYYY", "2018-01-02")', "the time has the form of RFC 3339"),
        ('formatdate("YYYY", "2018-02-30T00:00:00Z")', "the time has the form of RFC 3339"),
        ('timeadd("2018-01-02T00:00:00Z", "1d")', "the duration has units"),
        ('timeadd("9999-12-31T00:00:00Z", "48h")', "the result is outside the years 1 to 9999"),
        ("try(nope(), var.nope)", 'every argument has an error; the last is: no variable "nope" is declared'),
    ],
)
def test_a_wrong_argument_is_an_error(text: str, message: str) -> None:
    messages = find_failure(text).messages

    assert [f"{text.partition('(')[0]}: {message}"] == messages


@pytest.mark.parametrize(
    ("text", "value_type", "item_type"),
    [
        ('split(",", "a")', HclList, STRING),
        ("range(2)", HclList, NUMBER),
        ('distinct([1, "a"])', HclList, STRING),
        ('setunion(["a"])', HclSet, STRING),
        ('merge(convert({a = "x"}, map(string)), convert({b = "y"}, map(string)))', HclMap, STRING),
        ("chunklist(range(3), 2)", HclList, CollectionType("list", NUMBER)),
        ("concat(range(1), range(2))", HclList, NUMBER),
        ("keys(convert({a = 1}, map(number)))", HclList, STRING),
        ('zipmap(["a"], range(1))', HclMap, NUMBER),
    ],
)
def test_a_function_returns_a_list_or_map_of_one_type(text: str, value_type: type, item_type: object) -> None:
    value = evaluate_value(text)

    assert isinstance(value, value_type)
    assert item_type == value.item_type  # type: ignore[union-attr]  # checked above


def test_functions_of_tuples_return_tuples() -> None:
    assert isinstance(evaluate_value("concat([1], [2])"), HclTuple)
    assert isinstance(evaluate_value("keys({a = 1})"), HclTuple)


@pytest.mark.parametrize("name", ["abspath", "basename", "dirname", "file", "filebase64", "fileexists", "pathexpand"])
def test_a_file_function_is_an_error_on_a_server(name: str) -> None:
    failure = find_failure(f'{name}("x")')

    assert (
        f"the function {name} reads files, and the server has none: filesystem function disabled" in failure.messages[0]
    )
    assert "command line tool" in failure.fixes[0]


def test_fileset_is_an_error_on_a_server() -> None:
    assert "filesystem function disabled" in find_failure('fileset("x", "*")').messages[0]


@pytest.mark.parametrize("name", sorted(UNOFFERED_FUNCTIONS))
def test_a_function_of_another_tool_gets_the_offered_way(name: str) -> None:
    failure = find_failure(f"{name}(1)")

    assert [f'no function "{name}" exists'] == failure.messages
    assert [UNOFFERED_FUNCTIONS[name]] == failure.fixes


def test_all_functions_of_the_reference_exist() -> None:
    names = (
        "abs ceil floor log max min pow signum parseint chomp indent join split lower upper title replace regex_replace "
        "reverse strrev strlen substr trim trimprefix trimsuffix trimspace format formatlist chunklist coalesce "
        "coalescelist compact concat contains distinct element flatten index length range setintersection setproduct "
        "setunion slice sort keys values lookup merge zipmap base64encode base64decode urlencode jsonencode jsondecode "
        "yamlencode yamldecode csvdecode md5 sha1 sha256 sha512 bcrypt uuidv4 uuidv5 rsadecrypt cidrhost cidrnetmask "
        "cidrsubnet cidrsubnets formatdate timeadd abspath basename dirname file filebase64 fileexists fileset pathexpand"
    )

    assert sorted(names.split()) == sorted(FUNCTIONS)


def test_a_text_that_was_encrypted_with_a_public_key_is_decrypted() -> None:
    import base64

    from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
    from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    key = generate_private_key(65_537, 1_024)
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption()).decode()
    encrypted = base64.b64encode(key.public_key().encrypt("é".encode(), PKCS1v15())).decode()

    assert "é" == evaluate("rsadecrypt(var.s, var.key)", s=encrypted, key=pem)
    assert ["rsadecrypt: the text was not encrypted for this key, or is not UTF-8"] == find_failure(
        "rsadecrypt(var.s, var.key)", s="eA==", key=pem
    ).messages


@pytest.mark.parametrize("field", ["d", "dmp1", "dmq1", "iqmp"])
def test_a_key_whose_numbers_do_not_belong_together_is_refused(field: str) -> None:
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateNumbers, generate_private_key
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    right = generate_private_key(65_537, 1_024).private_numbers()
    fields = {name: getattr(right, name) for name in ("p", "q", "d", "dmp1", "dmq1", "iqmp")}
    fields[field] += 2
    wrong = RSAPrivateNumbers(**fields, public_numbers=right.public_numbers)
    key = wrong.private_key(unsafe_skip_rsa_key_validation=True)
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption()).decode()

    assert ["rsadecrypt: the numbers of the key do not belong together"] == find_failure(
        'rsadecrypt("eA==", var.key)', key=pem
    ).messages
