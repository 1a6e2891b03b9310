"""Job files that take long to read: for each language, files of a size that consist of one kind of content.

Most of the files are wrong, because the commands that read job files must also refuse files in time.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

MAX_FILE_BYTES: Final = 1_000_000
"""The size of the largest job file in HCL, and of the files of attacks."""


@dataclass(frozen=True, slots=True)
class WorstFile:
    """A kind of job file. `suffix` is the language, and `build_text` returns a file of at most a number of bytes, nearly as large."""

    name: str
    suffix: str
    build_text: Callable[[int], str]

    def __str__(self) -> str:
        return f"{self.suffix}, {self.name}"


def fill(size: int, start: str, part: str, end: str = "") -> str:
    """Return a text of at most `size` bytes that repeats a part. `@` in the part is the number of the repetition."""
    parts: list[str] = []
    remaining = size - len((start + end).encode())
    while (text := part.replace("@", str(len(parts)))) and (remaining := remaining - len(text.encode())) >= 0:
        parts.append(text)
    return start + "".join(parts) + end


def _nest(size: int, start: str, opening: str, closing: str, middle: str = "", end: str = "") -> str:
    """Return a text of at most `size` bytes that nests brackets."""
    count = (size - len(start + middle + end)) // len(opening + closing)
    return start + opening * count + middle + closing * count + end


def iter_worst_files() -> Iterator[WorstFile]:
    """Yield the files of all languages."""
    for suffix, files in (("hcl", _HCL), ("yaml", _YAML), ("json", _JSON), ("toml", _TOML)):
        for name, build in files.items():
            yield WorstFile(name, suffix, build)


def _repeat(start: str, part: str, end: str = "") -> Callable[[int], str]:
    return lambda size: fill(size, start, part, end)


def _deepen(start: str, opening: str, closing: str = "", middle: str = "", end: str = "") -> Callable[[int], str]:
    return lambda size: _nest(size, start, opening, closing, middle, end)


# -- HCL

_JOB: Final = 'job "a" {\n'
_TASK: Final = 'job "a" {\n  group "g" {\n    task "t" {\n      driver = "mock"\n'
_TASK_END: Final = "\n    }\n  }\n}\n"
_META: Final = f"{_JOB}  meta = {{\n"
_META_END: Final = "  }\n}\n"
_LOCAL: Final = f"{_JOB}}}\nlocals {{\n  a = "

_HCL: Final[dict[str, Callable[[int], str]]] = {
    "blocks in blocks": _deepen(_JOB, "a {\n", "}\n", end="}\n"),
    "lists in lists": _deepen(_LOCAL, "[", "]", end="\n}\n"),
    "lists without an end": _deepen(_LOCAL, "["),
    "objects in objects": _deepen(_LOCAL, "{a=", "}", "1", "\n}\n"),
    "parentheses": _deepen(_LOCAL, "(", ")", "1", "\n}\n"),
    "parentheses without an end": _deepen(_LOCAL, "("),
    "calls in calls": _deepen(_LOCAL, "upper(", ")", '"x"', "\n}\n"),
    "templates in templates": _deepen(_LOCAL, '"${', '}"', "1", "\n}\n"),
    "many lists of 90 levels": _repeat(f"{_LOCAL}[", "[" * 90 + "]" * 90 + ",\n", "]\n}\n"),
    "keys": _repeat(_META, "    k@ = 1\n", _META_END),
    "unknown arguments": _repeat(_JOB, "x@ = 1\n", "}\n"),
    "unknown blocks": _repeat(_JOB, "x@ {\n}\n", "}\n"),
    "unknown blocks of one line": _repeat(_JOB, "x@ {}\n", "}\n"),
    "one argument often": _repeat(_JOB, "type = 1\n", "}\n"),
    "comments": _repeat(_JOB, "# c\n", "}\n"),
    "comments inside a list": _repeat(f"{_LOCAL}[", "1, /* c */ # c\n", "]\n}\n"),
    "short comments": _repeat(_JOB, "/**/", "\n}\n"),
    "a comment without an end": _repeat(_JOB, "/* "),
    "blank lines": _repeat(_JOB, "\n", "}\n"),
    "blanks": _repeat(f"{_JOB}type", " ", '= "x"\n}\n'),
    "tabs in front of items": _repeat(_JOB, "\t" * 1_000 + "x@ = 1\n", "}\n"),
    "wrong characters": _repeat(_JOB, "?", "\n}\n"),
    "wrong lines": _repeat(_JOB, "?\n", "}\n"),
    "wrong lines in a list": _repeat(f"{_LOCAL}[", "?\n", "]\n}\n"),
    "values without quotes": _repeat(_JOB, "x@ = /bin/true\n", "}\n"),
    "numbers with units": _repeat(_JOB, "x@ = 256MB\n", "}\n"),
    "arguments without values": _repeat(_JOB, "x@ =\n", "}\n"),
    "texts without an end": _repeat(_JOB, 'x@ = "a\n', "}\n"),
    "quotes": _repeat(_JOB, '"', "\n}\n"),
    "quotes in pairs": _repeat(_LOCAL, '"x" ', "\n}\n"),
    "closing braces": _repeat(_JOB, "}\n"),
    "opening braces": _repeat(_JOB, "{\n"),
    "blocks without an end": _repeat(_JOB, "group g {\n"),
    "lines of another template language": _repeat(_JOB, "x = [[ .a ]]\n", "}\n"),
    "arguments separated by commas": _repeat(_JOB, "x@ = 1,\n", "}\n"),
    "two arguments on a line": _repeat(_JOB, "x@ { a = 1 b = 2 }\n", "}\n"),
    "a brace below each header": _repeat(_JOB, "group g@\n{\n}\n", "}\n"),
    "heredocs": _repeat(_META, "k@ = <<E\nx\nE\n", _META_END),
    "indented heredocs": _repeat(_META, "k@ = <<-E\n  x\n    y\nE\n", _META_END),
    "a heredoc of many lines": _repeat(f"{_META}k = <<-E\n", "  x\n", f"E\n{_META_END}"),
    "a heredoc of many templates": _repeat(f"{_META}k = <<-E\n", "  ${1}\n", f"E\n{_META_END}"),
    "heredocs without an end": _repeat(_META, "k@ = <<E@\n", _META_END),
    "heredocs of one name without an end": _repeat(_META, "k@ = <<E\n", _META_END),
    "heredocs with wrong starts": _repeat(_JOB, 'x@ = << "E"\n', "}\n"),
    "heredocs in heredocs": _repeat(_LOCAL, "<<E\n${"),
    "texts": _repeat(f"{_LOCAL}[", '"x", ', "]\n}\n"),
    "escapes": _repeat(f'{_LOCAL}"', "\\n", '"\n}\n'),
    "Unicode escapes": _repeat(f'{_LOCAL}"', "\\u00e9", '"\n}\n'),
    "combining characters": _repeat(f'{_LOCAL}"e', "\u0301\u0323", '"\n}\n'),
    "an error behind combining characters": _repeat(f'{_LOCAL}"e', "\u0301", '" ?\n}\n'),
    "an error behind emojis": _repeat(f'{_LOCAL}"', "👨‍👩‍👧", '" ?\n}\n'),
    "wrong escapes": _repeat(f'{_LOCAL}"', "\\q", '"\n}\n'),
    "wrong escapes on lines": _repeat(_JOB, 'x@ = "\\q"\n', "}\n"),
    "dollars": _repeat(f'{_LOCAL}"', "$", '"\n}\n'),
    "escaped templates": _repeat(f'{_LOCAL}"', "$${", '"\n}\n'),
    "templates": _repeat(f'{_LOCAL}"', "${1}", '"\n}\n'),
    "templates with references": _repeat(f'{_TASK}config {{\na = "', "${NOMAD_A@}", f'"\n}}\n{_TASK_END}'),
    "templates of unknown variables": _repeat(f'{_LOCAL}"', "${var.x@}", '"\n}\n'),
    "a conditional directive often": _repeat(f'{_LOCAL}"', "%{ if true }x%{ endif }", '"\n}\n'),
    "a loop directive often": _repeat(f'{_LOCAL}"', "%{ for x in [1, 2] }${x}%{ endfor }", '"\n}\n'),
    "directives without an end": _repeat(f'{_LOCAL}"', "%{ if true }", '"\n}\n'),
    "directives on lines": _repeat(f"{_META}k = <<-E\n", "  %{ if true ~}\n  x\n  %{ endif ~}\n", f"E\n{_META_END}"),
    "stripping marks": _repeat(f"{_META}k = <<-E\n", "  ${~ 1 ~}\n", f"E\n{_META_END}"),
    "dynamic blocks": _repeat(
        _JOB, 'dynamic "group" {\nfor_each = ["g@"]\nlabels = [group.value]\ncontent {\ntask "t" {\n}\n}\n}\n', "}\n"
    ),
    "dynamic blocks in dynamic blocks": _deepen(
        _TASK + "config {\n", 'dynamic "a" {\nfor_each = [1, 2]\ncontent {\n', "}\n}\n", "b = 1\n", "}\n" + _TASK_END
    ),
    "wrong dynamic blocks": _repeat(_JOB, 'dynamic "group" {\nfor_each = 1\ncontent {\n}\n}\n', "}\n"),
    "variables": _repeat(f"{_JOB}}}\n", 'variable "v@" {\n  default = 1\n}\n'),
    "variables of a type": _repeat(f"{_JOB}}}\n", 'variable "v@" {\n  type = list(object({ a = string }))\n  default = [{ a = 1 }]\n}\n'),
    "variables without values": _repeat(f"{_JOB}}}\n", 'variable "v@" {\n}\n'),
    "variables in one block": _repeat(f"{_JOB}}}\nvariables {{\n", "v@ = 1\n", "}\n"),
    "one variable often": _repeat(f"{_JOB}}}\n", 'variable "v" {\n  default = 1\n}\n'),
    "sensitive variables": _repeat(
        f"{_JOB}}}\n", 'variable "v@" {\n  sensitive = true\n  default = "secret-value-@"\n}\n'
    ),
    "sensitive variables and errors": _repeat(
        f'{_JOB}}}\njob "b" {{\n  x = 1\n  y = 1\n  z = var.nope\n}}\n',
        'variable "v@" {\n  sensitive = true\n  default = "secret-value-@"\n}\n',
    ),
    "a sensitive text of many lines": _repeat(
        f'{_JOB}  meta = {{ a = var.v }}\n  x = 1\n}}\nvariable "v" {{\n  sensitive = true\n  default = <<E\n', "line@\n", "E\n}\n"
    ),
    "validations by regexes": _repeat(
        f"{_JOB}}}\n",
        'variable "v@" {\n  default = "x"\n  validation {\n    condition = regex_replace(var.v@, "(a+)+$", "") != ""\n'
        '    error_message = "m"\n  }\n}\n',
    ),
    "a large regex": _repeat(f'{_LOCAL}regex_replace("x", "', "(a|b)*", '", "")\n}\n'),
    "a regex with counts": _repeat(f'{_LOCAL}regex_replace("x", "', "(a{1000})", '", "")\n}\n'),
    "a regex on a large text": _repeat(f'{_LOCAL}regex_replace("', "aaaaaaaab", '", "(a*)*c|(a|b|ab)*d", "")\n}\n'),
    "many regexes": _repeat(f"{_LOCAL}[\n", 'regex_replace("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab", "(a|aa)+@$", ""),\n', "]\n}\n"),
    "local values": _repeat(f"{_JOB}}}\nlocals {{\n", "a@ = 1\n", "}\n"),
    "local values of local values": lambda size: fill(
        size, f"{_JOB}}}\nlocals {{\n  a0 = 1\n", "b@ = local.a0\n", "}\n"
    ),
    "a chain of local values": lambda size: f"{_JOB}}}\nlocals {{\n  a0 = 1\n" + "".join(
        f"  a{at + 1} = local.a{at}\n" for at in range(size // 24)
    ) + "}\n",
    "a chain of growing local values": lambda size: f'{_JOB}}}\nlocals {{\n  a0 = "x"\n' + "".join(
        f'  a{at + 1} = "${{local.a{at}}}${{local.a{at}}}"\n' for at in range(size // 45)
    ) + "}\n",
    "a ring of local values": lambda size: f"{_JOB}}}\nlocals {{\n  a0 = local.a{size // 24}\n" + "".join(
        f"  a{at + 1} = local.a{at}\n" for at in range(size // 24)
    ) + "}\n",
    "undeclared local values": _repeat(f"{_JOB}}}\nlocals {{\n", "a@ = local.b@\n", "}\n"),
    "similar undeclared local values": _repeat(f"{_JOB}}}\nlocals {{\n", "abcdefghijkl@ = local.abcdefgh_jkl@\n", "}\n"),
    "loops": _repeat(f"{_LOCAL}[\n", "[for x in range(1000) : x],\n", "]\n}\n"),
    "loops in loops": _repeat(f"{_LOCAL}[\n", "[for x in range(1000) : [for y in range(1000) : x]],\n", "]\n}\n"),
    "loops of maps": _repeat(f"{_LOCAL}[\n", "{for x in range(1000) : x => x},\n", "]\n}\n"),
    "loops with conditions": _repeat(f"{_LOCAL}[\n", '[for x in range(1000) : x if x == "a"],\n', "]\n}\n"),
    "errors in loops": _repeat(f"{_LOCAL}[\n", "[for x in range(1000) : x + null],\n", "]\n}\n"),
    "tried errors in loops": _repeat(f"{_LOCAL}[\n", '[for x in range(1000) : try(x.nope, "a")],\n', "]\n}\n"),
    "long numbers": _repeat(f"{_LOCAL}[\n", "1" * 1_000 + ",\n", "]\n}\n"),
    "long fractions": _repeat(f"{_LOCAL}[\n", "0." + "1" * 990 + " / 0.7,\n", "]\n}\n"),
    "a number of many digits": _repeat(_LOCAL, "1", "\n}\n"),
    "sums": _repeat(_LOCAL, "1 + ", "1\n}\n"),
    "sums of fractions": _repeat(f"{_LOCAL}[", "1 / 3 + 1 / @7, ", "]\n}\n"),
    "powers": _repeat(f"{_LOCAL}[", "pow(7.7, 300), ", "]\n}\n"),
    "conditions": _repeat(_LOCAL, "true ? 1 : ", "1\n}\n"),
    "negations": _repeat(_LOCAL, "!", "true\n}\n"),
    "attributes of attributes": _repeat(f"{_LOCAL}x", ".a", "\n}\n"),
    "indexes of indexes": _repeat(f"{_LOCAL}[1]", "[0]", "\n}\n"),
    "calls of unknown functions": _repeat(f"{_LOCAL}[\n", "upperr@(1),\n", "]\n}\n"),
    "calls": _repeat(f"{_LOCAL}[\n", 'upper("x"),\n', "]\n}\n"),
    "calls with many arguments": _repeat(f"{_LOCAL}concat(", "[1], ", "[1])\n}\n"),
    "formats": _repeat(f"{_LOCAL}[\n", 'format("%1000d", 1),\n', "]\n}\n"),
    "hashes": _repeat(f"{_LOCAL}[\n", 'sha512("x"),\n', "]\n}\n"),
    "slow hashes": _repeat(f"{_LOCAL}[\n", 'bcrypt("x", 10),\n', "]\n}\n"),
    "keys of RSA": _repeat(f"{_LOCAL}[\n", 'rsadecrypt("eA==", "x"),\n', "]\n}\n"),
    "JSON in a text": lambda size: f"{_LOCAL}jsondecode({json.dumps('[' + '1,' * (size // 2) + '1]')})\n}}\n",
    "deep JSON in a text": lambda size: f"{_LOCAL}jsondecode({json.dumps('[' * (size // 2) + ']' * (size // 2))})\n}}\n",
    "YAML in a text": lambda size: f"{_LOCAL}yamldecode(<<E\n" + "- 1\n" * (size // 4) + "E\n)\n}\n",
    "deep YAML in a text": lambda size: f"{_LOCAL}yamldecode(<<E\n" + "[" * size + "\nE\n)\n}\n",
    "CSV in a text": lambda size: f"{_LOCAL}csvdecode(<<E\na\n" + "1\n" * (size // 2) + "E\n)\n}\n",
    "YAML of a list": _repeat(f"{_LOCAL}yamlencode([", '"x", ', "])\n}\n"),
    "networks": _repeat(f"{_LOCAL}[\n", 'cidrsubnet("10.0.0.0/8", 8, 1),\n', "]\n}\n"),
    "products": _repeat(f"{_LOCAL}[\n", "setproduct(range(100), range(100)),\n", "]\n}\n"),
    "distinct values": _repeat(f"{_LOCAL}distinct([", "@, ", "])\n}\n"),
    "distinct lists": _repeat(f"{_LOCAL}distinct([", "[@], ", "])\n}\n"),
    "sets of lists": _repeat(f"{_LOCAL}setunion([", "[@], ", "])\n}\n"),
    "merged maps": _repeat(f"{_LOCAL}merge(", "{ a@ = 1 }, ", "{})\n}\n"),
    "equal lists": lambda size: f"{_LOCAL}[{'1, ' * (size // 6)}] == [{'1, ' * (size // 6)}]\n}}\n",
    "groups": _repeat(_JOB, "group g@ {\n}\n", "}\n"),
    "groups with tasks": _repeat(_JOB, "group g@ {\ntask t {\ndriver = \"mock\"\n}\n}\n", "}\n"),
    "groups of one name": _repeat(_JOB, "group g {\n}\n", "}\n"),
    "tasks with unknown drivers": _repeat(f'{_JOB}group "g" {{\n', 'task t@ {\ndriver = "dokcer@"\n}\n', "}\n}\n"),
    "tasks with wrong options": _repeat(
        f'{_JOB}group "g" {{\n', 'task t@ {\ndriver = "raw_exec"\nconfig {\ncomand = "x"\n}\n}\n', "}\n}\n"
    ),
    "templates of tasks": _repeat(_TASK, 'template {\ndata = "{{ key \\"x\\" }}"\ndestination = "a"\n}\n', _TASK_END),
    "a template of a task": _repeat(f"{_TASK}template {{\ndata = <<E\n", "{{ if true }}{{ end }}\n", f"E\n}}\n{_TASK_END}"),
    "a deep template of a task": _repeat(f"{_TASK}template {{\ndata = <<E\n", "{{ if true }}\n", f"E\n}}\n{_TASK_END}"),
    "a wrong template of a task": _repeat(f"{_TASK}template {{\ndata = <<E\n", "{{ nope@ }}\n", f"E\n}}\n{_TASK_END}"),
    "blocks of a config": _repeat(f"{_TASK}config {{\n", "a {\n}\n", f"}}\n{_TASK_END}"),
    "arguments of a config": _repeat(f"{_TASK}config {{\n", "a@ = 1\n", f"}}\n{_TASK_END}"),
    "ports": _repeat(f'{_JOB}group "g" {{\nnetwork {{\n', "port p@ {\n}\n", "}\n}\n}\n"),
    "constraints": _repeat(_JOB, 'constraint {\nattribute = "${attr.x}"\nregexp = "(a+)+"\n}\n', "}\n"),
    "wrong constraints": _repeat(_JOB, "constraint {\ndistinct_hosts = true\nregexp = 1\nversion = 1\n}\n", "}\n"),
    "copies for tasks": lambda size: 'job "a" {\nvault {\npolicies = ["' + "x" * 1000 + '"]\n}\n' + fill(size, "group g {\n", "task t@ {\n}\n", "}\n}\n"),
    "unknown references": _repeat(f"{_TASK}config {{\n", 'a@ = "${nope@.x}"\n', f"}}\n{_TASK_END}"),
}  # fmt: skip

# -- JSON

_PLAIN: Final = '{"ID": "a", "TaskGroups": [{"Name": "g", "Tasks": [{"Name": "t", "Driver": "mock", "Config": '
_PLAIN_END: Final = "}]}]}"
_HCL_JSON: Final = '{"job": {"a": {'
_VARIABLES: Final = '{"variables": {"x": {"default": 1}}, "ID": "a", "Meta": {'

_JSON: Final[dict[str, Callable[[int], str]]] = {
    "lists in lists": _deepen(f"{_PLAIN}", "[", "]", end=_PLAIN_END),
    "lists without an end": _deepen(_PLAIN, "["),
    "objects in objects": _deepen(_PLAIN, '{"a":', "}", "1", _PLAIN_END),
    "empty lists": _repeat(f'{_PLAIN}{{"a": [', "[],", f"1]}}{_PLAIN_END}"),
    "numbers": _repeat(f'{_PLAIN}{{"a": [', "1,", f"1]}}{_PLAIN_END}"),
    "keys": _repeat(f"{_PLAIN}{{", '"k@":1,', f'"z":1}}{_PLAIN_END}'),
    "equal keys": _repeat(f"{_PLAIN}{{", '"k":1,', f'"z":1}}{_PLAIN_END}'),
    "equal keys in lists": _repeat(f"{_PLAIN}[", '{"a":1,"a":1},', f"1]{_PLAIN_END}"),
    "unknown fields": _repeat('{"ID": "a",', '"k@":1,', '"z":1}'),
    "unknown fields of groups": _repeat('{"ID": "a", "TaskGroups": [', '{"k":1},', "{}]}"),
    "wrong groups": _repeat('{"ID": "a", "TaskGroups": [', "1,", "{}]}"),
    "groups": _repeat('{"ID": "a", "TaskGroups": [', '{"Name":"g@"},', "{}]}"),
    "tasks": _repeat('{"ID": "a", "TaskGroups": [{"Name": "g", "Tasks": [', '{"Name":"t@","Driver":"mock"},', "{}]}]}"),
    "wrong tasks": _repeat('{"ID": "a", "TaskGroups": [{"Name": "g", "Tasks": [', '{"Name":"t@","Driver":"raw_exec","Config":{"comand":1}},', "{}]}]}"),
    "datacenters": _repeat('{"ID": "a", "Datacenters": [', "1,", "1]}"),
    "comparisons": _repeat('{"ID": "a", "Constraints": [', '"${attr.x} = 1",', "{}]}"),
    "wrong comparisons": _repeat('{"ID": "a", "Constraints": [', '"${attr.x}${attr.x}",', "{}]}"),
    "a long wrong comparison": _repeat('{"ID": "a", "Constraints": ["', "${a$", '"]}'),
    "a long comparison of blanks": _repeat('{"ID": "a", "Constraints": ["x', " ", 'y"]}'),
    "a long duration": _repeat('{"ID": "a", "Update": {"Stagger": "', "1h", '"}}'),
    "long numbers": _repeat(f'{_PLAIN}{{"a": [', "1" * 1_000 + ",", f"1]}}{_PLAIN_END}"),
    "a number of many digits": _repeat(f'{_PLAIN}{{"a": ', "1", f"}}{_PLAIN_END}"),
    "a fraction of many digits": _repeat(f'{_PLAIN}{{"a": 0.', "1", f"}}{_PLAIN_END}"),
    "escapes": _repeat(f'{_PLAIN}{{"a": "', "\\u00e9", f'"}}{_PLAIN_END}'),
    "half characters": _repeat(f'{_PLAIN}{{"a": [', '"\\ud800",', f'"x"]}}{_PLAIN_END}'),
    "a wrong text at the end": _repeat(f'{_PLAIN}{{"a": [', '"\\u00e9",', f'"\\ud800"]}}{_PLAIN_END}'),
    "a wrong character at the end": _repeat(f'{_PLAIN}{{"a": [', "1,", "?"),
    "blanks": _repeat(_PLAIN, " ", f"{{}}{_PLAIN_END}"),
    "lines": _repeat(_PLAIN, "\n", f"?{_PLAIN_END}"),
    "references without variables": _repeat(f'{_PLAIN}{{"a": [', '"${var.x@}",', f"1]}}{_PLAIN_END}"),
    "one text with references": _repeat(f'{_PLAIN}{{"a": "', "${var.x@}", f'"}}{_PLAIN_END}'),
    "templates": _repeat(_VARIABLES, '"k@":"${var.x}",', '"z":"1"}}'),
    "a text of templates": _repeat(f'{_VARIABLES}"a": "', "${var.x}", '"}}'),
    "wrong templates": _repeat(_VARIABLES, '"k@":"${var.}",', '"z":"1"}}'),
    "undeclared variables": _repeat(_VARIABLES, '"k@":"${var.y@}",', '"z":"1"}}'),
    "variables": _repeat('{"ID": "a", "variables": {', '"v@":1,', '"z":1}}'),
    "wrong variables": _repeat('{"ID": "a", "variables": {', '"v@":{"a":1},', '"z":1}}'),
    "sensitive variables": _repeat('{"ID": "a", "x": 1, "variables": {', '"v@":{"sensitive":true,"default":"secret-value-@"},', '"z":1}}'),
    "HCL in JSON": _repeat(_HCL_JSON, '"x@":1,', '"y":1}}}'),
    "groups of HCL in JSON": _repeat(f'{_HCL_JSON}"group": {{', '"g@":{},', '"y":{}}}}}'),
    "templates of HCL in JSON": _repeat(f'{_HCL_JSON}"meta": {{', '"k@":"${1}",', '"y":"1"}}}}'),
    "wrong templates of HCL in JSON": _repeat(f'{_HCL_JSON}"meta": {{', '"k@":"${",', '"y":"1"}}}}'),
    "escapes before templates of HCL in JSON": _repeat(f'{_HCL_JSON}"meta": {{"k":"', "\\u00e9${nope@}", '"}}}}'),
    "lists of HCL in JSON": _deepen(f'{_HCL_JSON}"meta": ', "[", "]", end="}}}"),
}  # fmt: skip

# -- YAML

_YAML_TASK: Final = "ID: a\nTaskGroups:\n- Name: g\n  Tasks:\n  - Name: t\n    Driver: mock\n    Config:\n"
_YAML_LISTS: Final = f"{_YAML_TASK}      a:\n"

_YAML: Final[dict[str, Callable[[int], str]]] = {
    "lists in lists": _deepen("a: ", "[", "]"),
    "lists without an end": _deepen("a: ", "["),
    "maps in maps": _deepen("a: ", "{a: ", "}", "1"),
    "lists in lists by dashes": _repeat("a:\n  ", "- "),
    "maps in maps by indentation": lambda size: "".join(" " * at + "a:\n" for at in range(int((2 * size) ** 0.5))),
    "question marks": _repeat("a:\n  ", "? "),
    "empty lists": _repeat("a:\n", "- [" + "[]," * 900 + "[]]\n"),
    "short values": _repeat("a:\n", "- [" + "1," * 900 + "1]\n"),
    "short texts": _repeat("a:\n", "- [" + "x," * 900 + "x]\n"),
    "short maps": _repeat("a:\n", "- [" + "{a: 1}," * 200 + "1]\n"),
    "short values on lines": _repeat("", "k@:\n" + "- 1\n" * 400),
    "values on lines": _repeat("a:\n", "- x\n"),
    "keys": _repeat("a:\n", "  k@: 1\n"),
    "keys of maps": _repeat("", "m@:\n" + "".join(f"  k{at}: 1\n" for at in range(200))),
    "equal keys": _repeat("a:\n", "  k: 1\n"),
    "unknown fields": _repeat("ID: a\n", "k@: 1\n"),
    "groups": _repeat("ID: a\nTaskGroups:\n", "- Name: g@\n"),
    "tasks": _repeat("ID: a\nTaskGroups:\n- Name: g\n  Tasks:\n", "  - Name: t@\n    Driver: mock\n"),
    "comments": _repeat("ID: a\n", "# c\n"),
    "comments behind values": _repeat("ID: a\nMeta:\n", "  k@: v # c\n"),
    "comments in a list": _repeat("a: [\n", "1, # c\n", "]\n"),
    "blank lines": _repeat("ID: a\n", "\n", "Name: a\n"),
    "blanks": _repeat("ID:", " ", "a\n"),
    "lines of blanks": _repeat("ID: a\n", " \n", "Name: a\n"),
    "a text of many words": _repeat("ID: a", " b", "\n"),
    "a text of many lines": _repeat("ID: a\n", "  b\n"),
    "a quoted text": _repeat('ID: "', "a", '"\n'),
    "a quoted text of words": _repeat('ID: "', "a ", '"\n'),
    "a quoted text of lines": _repeat('ID: "', "a\n  ", '"\n'),
    "a quoted text of blank lines": _repeat('ID: "a', "\n", '"\n'),
    "a text in single quotes": _repeat("ID: '", "''", "'\n"),
    "a text without an end": _repeat('ID: "', "a\n "),
    "escapes": _repeat('ID: "', "\\n", '"\n'),
    "Unicode escapes": _repeat('ID: "', "\\u00e9", '"\n'),
    "escaped line ends": _repeat('ID: "', "a\\\n  ", '"\n'),
    "wrong escapes": _repeat('ID: "', "\\q", '"\n'),
    "block texts": _repeat("Meta:\n", "  k@: |\n    x\n"),
    "a block text": _repeat("ID: |\n", "  x\n"),
    "a block text of blank lines": _repeat("ID: |\n  a\n", "\n", "  b\n"),
    "a folded text": _repeat("ID: >\n", "  x\n"),
    "a folded text of indented lines": _repeat("ID: >\n", "  x\n   y\n"),
    "anchors": _repeat("ID: a\nMeta:\n", "  k@: &a@ v\n"),
    "anchors of one name": _repeat("ID: a\nMeta:\n", "  k@: &a v\n"),
    "aliases": _repeat("ID: &a a\nMeta:\n", "  k@: *a\n"),
    "aliases of a list": _repeat("x-a: &a [" + "1, " * 999 + "1]\nx-b:\n", "- *a\n"),
    "nested aliases": lambda size: "x0: &x0 [1, 1]\n" + "".join(
        f"x{at + 1}: &x{at + 1} [*x{at}, *x{at}]\n" for at in range(size // 36)
    ),
    "an alias of itself": _repeat("a: &a [*a]\nb:\n", "- *a\n"),
    "unknown aliases": _repeat("a:\n", "- *a@\n"),
    "merge keys": _repeat("x-a: &a {b: 1}\nMeta:\n", "- <<: *a\n"),
    "merge keys of large maps": lambda size: fill(
        size, "x-a: &a {" + "".join(f"k{at}: 1, " for at in range(min(4_000, size // 30))) + "z: 1}\nx-b:\n", "- <<: *a\n"
    ),
    "merge keys of merge keys": lambda size: "x0: &x0 {a: 1}\n" + "".join(
        f"x{at + 1}: &x{at + 1} {{<<: *x{at}, k{at}: 1}}\n" for at in range(size // 43)
    ),
    "merge keys in one map": _repeat("x-a: &a {b: 1}\nMeta:\n  <<: [", "*a, ", "*a]\n"),
    "tags": _repeat("ID: a\nMeta:\n", "  k@: !!str v\n"),
    "unknown tags": _repeat("a: [", "!x y, ", "]\n"),
    "a long tag": _repeat("a: !", "x", " y\n"),
    "a long anchor": _repeat("a: &", "x", " y\n"),
    "tag directives": _repeat("", "%TAG !a@! tag:x\n", "---\nID: a\n"),
    "directives": _repeat("", "%X y\n", "---\nID: a\n"),
    "documents": _repeat("ID: a\n", "---\na\n"),
    "long numbers": _repeat("a:\n", "- " + "1" * 1_000 + "\n"),
    "a number of many digits": _repeat("ID: ", "1", "\n"),
    "a number of many underscores": _repeat("ID: 1", "_", "1\n"),
    "a number of base 60": _repeat("ID: 1", ":1", "\n"),
    "dates": _repeat("ID: a\nMeta:\n", "  k@: 2020-01-01\n"),
    "long keys": _repeat("", "k" * 2_000 + "\n"),
    "a long key": _repeat("", "k", ": 1\n"),
    "colons": _repeat("a", ":", "\n"),
    "colons and blanks": _repeat("a", ": ", "\n"),
    "tabs": _repeat("ID: a\n", "\t", "b: 1\n"),
    "wrong indentation at the end": _repeat("ID: a\nMeta:\n", "  k@: v\n", " x: 1\n"),
    "a wrong item at the end": _repeat("ID: a\nMeta:\n", "  k@: v\n", "  - 1\n"),
    "a wrong quote at the end": _repeat("ID: a\nMeta:\n", "  k@: 'v'\n", "  z: 'a'b\n"),
    "a wrong tab at the end": _repeat("ID: a\nMeta:\n", "  k@: v\n", "\tz: 1\n"),
    "an equal key at the end": _repeat("ID: a\nMeta:\n", "  k@: v\n", "  k0: v\n"),
    "a control character at the end": _repeat("ID: a\nMeta:\n", "  k@: v\n", "  z: \x07\n"),
    "braces of another template language": _repeat("a:\n", "- {{ x }}\n"),
    "references without variables": _repeat("ID: a\nMeta:\n", "  k@: ${var.x@}\n"),
    "templates": _repeat("ID: a\nvariables: {x: 1}\nMeta:\n", "  k@: ${var.x}\n"),
    "a block text of templates": _repeat("ID: a\nvariables: {x: 1}\nMeta:\n  a: |\n", "    ${var.x}\n"),
    "non-ASCII texts": _repeat("ID: a\nMeta:\n", "  k@: é\n"),
}  # fmt: skip

# -- TOML

_TOML_TASK: Final = 'ID = "a"\n[[TaskGroups]]\nName = "g"\n[[TaskGroups.Tasks]]\nName = "t"\nDriver = "mock"\n[TaskGroups.Tasks.Config]\n'

_TOML: Final[dict[str, Callable[[int], str]]] = {
    "lists in lists": _deepen("a = ", "[", "]"),
    "lists without an end": _deepen("a = ", "["),
    "tables in tables": _deepen("a = ", "{a=", "}", "1"),
    "tables in tables without an end": _deepen("a = ", "{a="),
    "empty lists": _repeat(f"{_TOML_TASK}a = [", "[],", "1]\n"),
    "numbers": _repeat(f"{_TOML_TASK}a = [", "1,", "1]\n"),
    "keys": _repeat(_TOML_TASK, "k@ = 1\n"),
    "unknown fields": _repeat('ID = "a"\n', "k@ = 1\n"),
    "equal keys at the end": _repeat(_TOML_TASK, "k@ = 1\n", "k0 = 1\n"),
    "dotted keys": _repeat(_TOML_TASK, "a.b@.c = 1\n"),
    "dotted keys of one table": _repeat(_TOML_TASK, "a.b.c.d@ = 1\n"),
    "dotted keys of many parts": _repeat(_TOML_TASK, "k@" + ".a" * 98 + " = 1\n"),
    "dotted keys of one path": _repeat(_TOML_TASK, "a." * 98 + "k@ = 1\n"),
    "an error behind dotted keys": _repeat(_TOML_TASK, "a.b.c.d@ = 1\n", "x = ?\n"),
    "an equal dotted key at the end": _repeat(_TOML_TASK, "a.b.c.d@ = 1\n", "a.b.c.d0 = 1\n"),
    "a dotted key in a value": _repeat(_TOML_TASK, "a.b.c.d@ = 1\n", "a.b.c.d0.e = 1\n"),
    "a key with many parts": _repeat(_TOML_TASK, "a.", "a = 1\n"),
    "a header with many parts": _repeat("[", "a.", "a]\n"),
    "headers": _repeat('ID = "a"\n', "[a@]\n"),
    "headers of parts": _repeat('ID = "a"\n', "[a.b.c.d@]\n"),
    "headers of many parts": _repeat('ID = "a"\n', "[" + "a." * 98 + "k@]\n"),
    "headers of many other parts": _repeat('ID = "a"\n', "[k@" + ".a" * 98 + "]\n"),
    "equal headers": _repeat('ID = "a"\n', "[a]\n"),
    "an equal header at the end": _repeat('ID = "a"\n', "[a@]\n", "[a0]\n"),
    "headers of lists": _repeat('ID = "a"\n', "[[TaskGroups]]\n"),
    "headers of lists in lists": _repeat('ID = "a"\n', "[[TaskGroups]]\n[[TaskGroups.Tasks]]\n"),
    "headers of lists of many parts": _repeat('ID = "a"\n', "[[" + "a." * 98 + "k]]\n"),
    "inline tables": _repeat(f"{_TOML_TASK}a = [", "{a=1},", "1]\n"),
    "inline tables of dotted keys": _repeat(f"{_TOML_TASK}a = {{", "a.b@=1,", "z=1}\n"),
    "one inline table": _repeat(f"{_TOML_TASK}a = {{", "k@=1,", "z=1}\n"),
    "groups": _repeat('ID = "a"\n', '[[TaskGroups]]\nName = "g@"\n'),
    "tasks": _repeat('ID = "a"\n[[TaskGroups]]\nName = "g"\n', '[[TaskGroups.Tasks]]\nName = "t@"\nDriver = "mock"\n'),
    "comments": _repeat('ID = "a"\n', "# c\n"),
    "comments in a list": _repeat(f"{_TOML_TASK}a = [", "1, # c\n", "1]\n"),
    "blank lines": _repeat('ID = "a"\n', "\n", "x = ?\n"),
    "blanks": _repeat("ID =", " ", '"a"\n'),
    "escapes": _repeat('ID = "', "\\n", '"\n'),
    "Unicode escapes": _repeat('ID = "', "\\u00e9", '"\n'),
    "a text of many lines": _repeat('ID = """', "x\n", '"""\n'),
    "a text of line continuations": _repeat('ID = """', "x\\\n  ", '"""\n'),
    "a text of quotes": _repeat('ID = """', '""x', '"""\n'),
    "a literal text of quotes": _repeat("ID = '''", "''x", "'''\n"),
    "texts": _repeat(f"{_TOML_TASK}a = [", '"x",', '"x"]\n'),
    "a text without an end": _repeat('ID = "', "\\n", "\n"),
    "texts before a text without an end": _repeat(f"{_TOML_TASK}a = [", "'x',", '"x\n'),
    "a text of lines without an end": _repeat('ID = """', "\\n\n"),
    "wrong escapes": _repeat('ID = "', "\\q", '"\n'),
    "long numbers": _repeat(f"{_TOML_TASK}a = [", "1" * 1_000 + ",\n", "1]\n"),
    "numbers with underscores": _repeat(f"{_TOML_TASK}a = [", "1" + "_1" * 500 + ",\n", "1]\n"),
    "a number of many digits": _repeat("ID = ", "1", "\n"),
    "a number of many digits behind texts": _repeat("a = [", '"1",', "1" * 5_000 + "]\n"),
    "a hexadecimal number": _repeat("ID = 0x", "f", "\n"),
    "a fraction of many digits": _repeat("ID = 0.", "1", "\n"),
    "not finite numbers": _repeat(f"{_TOML_TASK}a = [", "1.5,", "inf]\n"),
    "dates": _repeat(f"{_TOML_TASK}a = [", "2020-01-01,", "1]\n"),
    "a date at the end": _repeat(f"{_TOML_TASK}a = [", "1,", "2020-01-01]\n"),
    "a wrong value at the end": _repeat(f"{_TOML_TASK}a = [", "1,", "?]\n"),
    "words behind keys": _repeat('ID = "a"\n', "k@ = x\n"),
    "quoted keys": _repeat(_TOML_TASK, '"k\\u00e9@" = 1\n'),
    "control characters": _repeat('ID = "', "x", '\x07"\n'),
    "references without variables": _repeat(_TOML_TASK, 'k@ = "${var.x@}"\n'),
    "templates": _repeat('ID = "a"\nvariables.x = 1\n[Meta]\n', 'k@ = "${var.x}"\n'),
    "a text of templates": _repeat('ID = "a"\nvariables.x = 1\n[Meta]\na = """', "${var.x}\n", '"""\n'),
}  # fmt: skip
