"""The functions of templates: results and errors."""

from typing import Any

import pytest

from wharf.languages.templates import ParsedTemplate, TemplateError

VALUES: Any = {"text": "Hello World", "list": ["b", "a"], "map": {"k": "v"}, "n": 7}


def render(template: str) -> str:
    return ParsedTemplate("{{" + template + "}}").render(VALUES).text


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("eq 1 1.0", "true"),
        ('eq "a" "b" "a"', "true"),
        ("eq nil .nothing", "true"),
        ("ne .n 8", "true"),
        ("lt 1 2", "true"),
        ('ge "b" "a"', "true"),
        ("len .text", "11"),
        ("len nil", "0"),
        ("index .map `k`", "v"),
        ("index .list 1", "a"),
        ("slice .text 0 5", "Hello"),
        ("slice .text 6", "World"),
        ('.list | contains "a"', "true"),
        ('in .list "x"', "false"),
        ('containsAll (split "," "a,b") .list', "true"),
        ('containsAny (split "," "x,b") .list', "true"),
        ('containsNone (split "," "x,y") .list', "true"),
        ('containsNotAll (split "," "x,a") .list', "true"),
        ('mergeMap (parseJSON `{"k":1,"b":2}`) .map', "map[b:2 k:v]"),
        ('mergeMapWithOverride (parseJSON `{"k":1}`) .map', "map[k:1]"),
        ("add 1 2", "3"),
        ("5 | subtract 2", "3"),
        ("multiply 3 4", "12"),
        ("divide 2 9", "4"),
        ("divide 2 -9", "-4"),
        ("modulo 5 -7", "-2"),
        ("divide 2.0 9", "4.5"),
        ("minimum 1 2", "1"),
        ("maximum 1 2", "2"),
        ("loop 3", "[0 1 2]"),
        ('loop 1 "3"', "[1 2]"),
        ('parseInt "12"', "12"),
        ('parseFloat "1.5"', "1.5"),
        ('parseBool "true"', "true"),
        ('print "a" 1 "b"', "a1b"),
        ('printf "%-5s|%3d|%q|%05.1f|%x|%+d|%%" "a" 3 "q" 2.25 255 4', 'a    |  3|"q"|002.2|ff|+4|%'),
        ('join .list ", "', "b, a"),
        ('.list | join "+"', "b+a"),
        ('split "," "a,b"', "[a b]"),
        ('splitToMap "," "=" "a=1,b=2"', "map[a:1 b:2]"),
        ('indent 2 "a\\nb"', "  a\n  b"),
        ('"hello world" | toTitle', "Hello World"),
        ("toUpper .text", "HELLO WORLD"),
        ('trim "x" "xxaxx"', "a"),
        ('trimSpace " a "', "a"),
        ('"old-name" | trimPrefix "old-"', "name"),
        ('"name.txt" | trimSuffix ".txt"', "name"),
        ('.text | replaceAll "l" "L"', "HeLLo WorLd"),
        ('.text | regexMatch "^H.*d$"', "true"),
        ('.text | regexReplaceAll "(\\\\w+) (\\\\w+)" "${2} $1 $$"', "World Hello $"),
        ("toJSON .map", '{"k":"v"}'),
        ("toJSONPretty .map", '{\n  "k": "v"\n}'),
        ("toYAML .list", "- b\n- a"),
        ('(parseYAML "a: [1, on]").a', "[1 on]"),
        ('(parseJSON "[1,2]") | len', "2"),
        ('(explodeMap (parseJSON `{"a/b":1}`)).a.b', "1"),
        ('base64Encode "hi?>"', "aGk/Pg=="),
        ('"aGk/Pg==" | base64Decode', "hi?>"),
        ('base64URLEncode "hi?>"', "aGk_Pg=="),
        ('base64URLDecode "aGk_Pg"', "hi?>"),
        ('sha256Hex "a"', "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb"),
        ('md5sum "a"', "0cc175b9c0f1b6a831c399e269772661"),
        ('"text" | hmacSHA256Hex "key"', "6afa9046a9579cad143a384c1b564b9a250d27d6f6a63f9f20bf3a7594c9e2c6"),
        ('html "<a>"', "&lt;a&gt;"),
        ('urlquery "a b&c"', "a+b%26c"),
        ("le 2 2", "true"),
        ("gt .n 8", "false"),
        ("ne nil 1", "true"),
        ('index (parseJSON `{"a":[5,6]}`) "a" 1', "6"),
        ('index .map "missing"', "<no value>"),
        ("slice .list 1", "[a]"),
        ("slice .list", "[b a]"),
        ('.map | contains "k"', "true"),
        ('.text | contains "World"', "true"),
        ('nil | contains "k"', "false"),
        ('containsAny (split "," "x") nil', "false"),
        ("containsAll nil .list", "true"),
        ("modulo 5 7", "2"),
        ("divide -2 9", "-4"),
        ("loop 5 2", "[]"),
        ('parseUint "18446744073709551615"', "18446744073709551615"),
        ('parseInt " -12 "', "-12"),
        ('parseBool "F"', "false"),
        ("parseYAML `d: 2026-11-21`", "map[d:2026-11-21]"),
        ("parseYAML `!!binary aGk=`", "aGk="),
        ("parseYAML `? [1, 2]\n: x`", "map[[1 2]:x]"),
        ("parseYAML `~`", "<no value>"),
        ('parseJSON ""', "map[]"),
        ("toYAML .map", "k: v"),
        ("toUnescapedJSON `<a>`", '"<a>"'),
        ('sha1sum "a"', "86f7e437faa5a7fce15d1ddcb9eaeaea377667b8"),
        ('printf "%v|%s|%t" nil 1.5 true', "<no value>|1.5|true"),
        ('printf "%c%c" 65 1114112', "A\ufffd"),
        ('printf "%.2s|%.0f|%e|%g" "abc" 2.5 1.5 0.1', "ab|2|1.500000e+00|0.1"),
        ('printf "%X|%x" "hi" 255', "6869|ff"),
        ('printf "%q" "a\\"b\\n"', '"a\\"b\\n"'),
        ('printf "% 5d|%05d|%-5d|" 42 42 42', "   42|00042|42   |"),
        ('println "a" 1', "a 1\n"),
        ('join nil ","', ""),
        ('split "" "abc"', "[a b c]"),
        ('split "," ""', "[]"),
        ('splitToMap "," "" "a=1,b"', "map[a:1 b:]"),
        ('short "0123456789"', "01234567"),
        ('lower "ABC"', "abc"),
        ('toLower "ABC"', "abc"),
        ('upper "abc"', "ABC"),
    ],
)
def test_functions_return_their_documented_results(template: str, expected: str) -> None:
    assert expected == render(template)


@pytest.mark.parametrize(
    ("template", "error"),
    [
        ('add 1 "2"', "2 is not a number: convert text with parseInt"),
        ('parseInt "x"', "'x' is not a whole number"),
        ("multiply 9999999999 99999999999", "the number does not fit in 64 bits"),
        ('printf "%d" "a"', "printf %d takes a whole number, got a"),
        ('printf "%d"', "printf has no value for %d"),
        ('printf "x" 1', "printf has 1 value too many"),
        ('parseJSON "{"', "parseJSON cannot read this: Input data was truncated"),
        ('parseYAML "a: ["', "parseYAML cannot read this: "),
        ('base64Decode "!"', "this is not valid base64"),
        ('regexMatch "(" "a"', "invalid pattern (: missing )"),
        ('parseBool "maybe"', "'maybe' is neither true nor false"),
        ("slice .text 3 99", "3 to 99 is out of range: the text has length 11"),
        ("parseJSON (printf `%s` (print `[` ))", "parseJSON cannot read this"),
        ("lt true false", "only numbers and texts can be ordered, got a boolean"),
        ("lt .map .map", "only numbers and texts can be ordered, got a map"),
        ("eq .list 1", "cannot compare [b a] (a list) with 1 (a number)"),
        ('index .n "k"', "a number has no element k"),
        ("index .list true", "a list has no element true"),
        ('slice .text "1"', "slice takes a text or a list, and whole numbers"),
        ("slice .map 1", "slice takes a text or a list, and whole numbers"),
        ("len .n", "a number has no length"),
        ("in .n 7", "cannot search in a number"),
        ("mergeMap .map .list", "mergeMap takes two maps"),
        ("add 1 true", "true is not a number: convert text with parseInt"),
        ('add 1 ""', "an empty text is not a number: convert text with parseInt"),
        ("modulo 2.5 7", "modulo takes whole numbers"),
        ("loop 1.5", "loop takes whole numbers"),
        ('parseUint "-1"', "-1 is below zero"),
        ('parseInt "99999999999999999999"', "the number does not fit in 64 bits"),
        ('parseFloat "x"', "'x' is not a number"),
        ("explodeMap .list", "explodeMap takes a map"),
        ('explodeMap (parseJSON `{"a":1,"a/b":2}`)', "explodeMap: a key above a/b has a value of its own"),
        ('base64URLDecode "/w"', "this is not valid base64"),
        ('printf "%f" "a"', "printf %f takes a number, got a"),
        ('printf "%y" 1', "printf does not support %y: use %s %v %q %d %f %g %e %t %x %c"),
        ('printf "100%"', "printf does not support %: use %s"),
        ('join "a" "b"', "join takes a list and a separator"),
        ('indent -1 "a"', "indent takes a number from 0 to"),
        ('indent "2" "a"', "indent takes a number from 0 to"),
    ],
)
def test_functions_reject_wrong_arguments_with_a_reason(template: str, error: str) -> None:
    with pytest.raises(TemplateError) as raised:
        render(template)

    assert error in str(raised.value)


def test_a_yaml_document_with_exploding_aliases_is_rejected() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]

    with pytest.raises(TemplateError, match="parseYAML reads at most 1,000,000 values"):
        ParsedTemplate("{{parseYAML .}}").render("\n".join(lines))


def test_json_that_is_nested_too_deep_is_rejected() -> None:
    with pytest.raises(TemplateError, match="parseJSON cannot read this"):
        ParsedTemplate("{{parseJSON .}}").render("[" * 100_000)


def test_a_yaml_document_that_is_nested_too_deep_is_rejected() -> None:
    with pytest.raises(TemplateError, match="parseYAML reads at most 1,000,000 values, 200 deep"):
        ParsedTemplate("{{parseYAML .}}").render("[" * 202 + "]" * 202)
