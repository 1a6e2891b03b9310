"""The pages of `docs/job-file`: an index, a page for each block and a page for the options of each driver."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from wharf.contract.model import body_limits
from wharf.job_files.data_writer import MAX_FORMATTED_CHARS, MAX_FORMATTED_NODES, MAX_WRITTEN_NODES
from wharf.job_files.hcl_formatter import format_hcl
from wharf.job_files.reference.document import describe_spelling
from wharf.job_files.reference.examples import EXAMPLES
from wharf.job_files.reference.rendering import format_hcl_value, render_hcl, render_yaml
from wharf.job_files.schema import DRIVERS_KEY, FIELDS_KEY, JsonObject, format_schema_comment
from wharf.languages import yaml_reader
from wharf.languages.exact_values import MAX_DEPTH, MAX_NUMBER_CHARS
from wharf.languages.hcl.documents import MAX_FILE_BYTES
from wharf.languages.hcl.reader import MAX_NESTING, MAX_NODES, NAME
from wharf.languages.markup import MAX_JSON_VALUES, MAX_SLOW_CHARS, MAX_TOML_VALUES
from wharf.languages.toml_faults import MAX_KEY_PARTS

FOLDER: Final = "docs/job-file"
GENERATED_NOTE: Final = "<!-- Written by `python -m wharf.job_files.reference` from the model; do not edit. -->"
_INDEX_NAME: Final = "README.md"
VARIABLE_PAGE: Final = "variable.md"
_VARIABLE_EXAMPLES: Final = (
    """\
variables:
  copies:
    type: number
    default: 2
    description: How many allocations run
    validation:
      condition: var.copies > 0
      error_message: write a number above 0
  token:
    type: string
    default: none
    sensitive: true
ID: web
TaskGroups:
  - Name: api
    Count: ${var.copies}
    Tasks:
      - Name: server
        Driver: raw_exec
        Config: {command: /bin/sleep, args: [infinity]}
        Env: {TOKEN: "${var.token}"}
""",
    """\
variable "copies" {
  type        = number
  default     = 2
  description = "How many allocations run"

  validation {
    condition     = var.copies > 0
    error_message = "write a number above 0"
  }
}

variable "token" {
  type      = string
  default   = "none"
  sensitive = true
}

job "web" {
  group "api" {
    count = var.copies

    task "server" {
      driver = "raw_exec"

      config {
        command = "/bin/sleep"
        args    = ["infinity"]
      }

      env {
        TOKEN = var.token
      }
    }
  }
}
""",
)
"""A file with variables in YAML and in HCL."""
_INNER_BLOCKS: Final[Mapping[str, tuple[str, ...]]] = {
    "Spread": ("SpreadTarget",),
    "UI": ("UILink",),
    "Multiregion": ("MultiregionStrategy", "MultiregionRegion"),
    "Service": ("ServiceWeights",),
    "VolumeRequest": ("MountOptions",),
    "Template": ("ChangeScript", "TemplateWait"),
    "Resources": ("NUMA",),
    "NetworkResource": ("Port", "DNS", "CNI"),
    "DockerConfig": (
        "MountConfig", "BindOptions", "VolumeOptions", "VolumeDriverConfig", "TmpfsOptions", "DeviceConfig", "AuthConfig",
        "LoggingConfig", "HealthChecksConfig",
    ),
}  # fmt: skip
"""Small blocks that are sections of the page of the block around them."""
_SHORT_FORM_NOTES: Final[Mapping[str, str]] = {
    "Constraint": "HCL has short forms: `version`, `semver`, `regexp`, `set_contains`, `set_contains_any` and `set_contains_all` set the "
    "operand and the right value, `is_set`, `is_not_set` and `distinct_property` the operand and the left value, and "
    "`distinct_hosts = true` the operand. A file in YAML may write a comparison as text: "
    '`Constraints: ["${attr.kernel.name} = linux"]`.',
    "Affinity": "HCL has short forms: `version`, `semver`, `regexp`, `set_contains`, `set_contains_any` and `set_contains_all` set the "
    "operand and the right value.",
    "Need": 'A need that only has a name may be written as text: `Depends: [build, lint]` in YAML, and `depends = ["build", "lint"]` '
    "in HCL.",
    "Task": "In HCL, a block `task` may also stand directly in the job. It becomes a group of its own with the same name.",
    "NetworkResource": "In HCL, both kinds of ports are blocks `port`: one with `static` is a static port.",
    "VolumeRequest": "In YAML, `Volumes` is a map, and its keys are the names: `Volumes: {data: {Type: host, Source: data}}`.",
    "WorkloadIdentity": "In HCL, the block without `name`, or with the name `default`, is `Identity`; the others are `Identities`.",
    "Vault": "In HCL, the block may also stand in a group or in the job. Tasks without a block of their own have the nearest one.",
    "TaskSecret": "In HCL, the block may also stand in a group or in the job. All tasks inside have these secrets.",
    "LogConfig": "In HCL, `enabled = false` is an older spelling of `disabled = true`.",
    "MockConfig": "The driver exists on every node. It starts no program, so a task needs no image and no command.",
    "RawExecConfig": "The driver is off by default. [What tasks can reach](../node.md#what-tasks-can-reach) says why.",
    "ExecConfig": "[The sandbox of exec](../node.md#the-sandbox-of-exec) describes what a task sees and may do.",
    "DockerConfig": "Some options need a permission of the node. [Containers](../node.md#containers) lists them with the settings.",
}


def build_pages(schema: JsonObject) -> dict[str, str]:
    """Return the text of each page by file name."""
    inner = {name for names in _INNER_BLOCKS.values() for name in names}
    names = [name for name in schema["$defs"] if name not in inner]
    pages = {_INDEX_NAME: _finish(_render_index(schema, names))}
    pages[VARIABLE_PAGE] = _finish(_render_variable_page(schema))
    return pages | {get_page_name(schema, name): _finish(_render_page(schema, name)) for name in names}


def _finish(lines: Iterable[str]) -> str:
    """Return the text of a page, without empty lines that follow each other."""
    return re.sub(r"\n{3,}", "\n\n", "\n".join([GENERATED_NOTE, "", *lines])).rstrip() + "\n"


def get_page_name(schema: JsonObject, block_name: str) -> str:
    """Return the file name of the page on which a block is described."""
    for outer, names in _INNER_BLOCKS.items():
        if block_name in names:
            return get_page_name(schema, outer)
    prefix = "driver-" if block_name in schema[DRIVERS_KEY].values() else ""
    title = schema["$defs"][block_name]["x-hcl-name"] or _to_words(block_name)
    return f"{prefix}{title.replace('_', '-')}.md"


def _to_words(class_name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", class_name).lower()


def _render_page(schema: JsonObject, block_name: str) -> Iterator[str]:
    """Yield the lines of the page of one block."""
    definition = schema["$defs"][block_name]
    is_driver = block_name in schema[DRIVERS_KEY].values()
    title = definition["x-hcl-name"] or _to_words(block_name)
    yield f"# Driver {title}" if is_driver else f"# {title}"
    yield ""
    yield definition["description"]
    yield ""
    if is_driver:
        yield f"A task with `Driver: {title}` has these options in its block `Config`; in HCL, in the block `config`. An unknown option is an error."
    else:
        yield from _render_places(schema, block_name)
    yield ""
    if block_name in _SHORT_FORM_NOTES:
        yield _SHORT_FORM_NOTES[block_name]
        yield ""
    yield from _render_example(schema, block_name)
    yield from _render_fields(schema, schema["$defs"][block_name]["properties"], prefix="", level=2)
    for inner in _INNER_BLOCKS.get(block_name, ()):
        yield f"## {_describe_inner(schema, inner)}"
        yield ""
        yield schema["$defs"][inner]["description"]
        yield ""
        properties = schema["$defs"][inner]["properties"]
        yield from _render_fields(schema, properties, prefix=f"{_get_inner_name(schema, inner)}.", level=3)


def _render_variable_page(schema: JsonObject) -> Iterator[str]:
    """Yield the lines of the page about the variables of a file, which are no part of the job."""
    entry = schema["$defs"]["Job"]["properties"]["variables"]
    yield "# variable"
    yield ""
    yield get_prose(entry)
    yield ""
    yield "In YAML, JSON and TOML: `variables` at the top level of the file. In HCL: blocks `variable` beside the job."
    yield "[Variables](../hcl.md#variables) shows where their values come from, and which of them win."
    yield ""
    yield "```yaml"
    yield from _VARIABLE_EXAMPLES[0].splitlines()
    yield "```"
    yield ""
    yield "```hcl"
    yield from _VARIABLE_EXAMPLES[1].splitlines()
    yield "```"
    yield ""
    fields = entry[FIELDS_KEY]
    yield from _render_fields(schema, fields, prefix="", level=2)
    yield from _render_fields(schema, fields["validation"][FIELDS_KEY], prefix="validation.", level=3)


def _describe_inner(schema: JsonObject, block_name: str) -> str:
    """Return the heading of a small block: its name, and that in HCL."""
    name, hcl_name = _get_inner_name(schema, block_name), schema["$defs"][block_name]["x-hcl-name"]
    return f"{name} (block `{hcl_name}` in HCL)" if hcl_name else name


def _get_inner_name(schema: JsonObject, block_name: str) -> str:
    """Return the name of a small block in headings: that of its field, or of its class if several fields hold it."""
    fields = list(dict.fromkeys(field for _, field in _find_holders(schema, block_name)))
    return fields[0] if len(fields) == 1 or not schema["$defs"][block_name]["x-hcl-name"] else block_name


def _get_link(schema: JsonObject, block_name: str) -> str:
    """Return the target of a link to the description of a block: its page, or its section on the page of another block."""
    page = get_page_name(schema, block_name)
    if not any(block_name in names for names in _INNER_BLOCKS.values()):
        return page
    heading = _describe_inner(schema, block_name).lower().replace(" ", "-")
    return f"{page}#{re.sub(r'[^a-z0-9_-]', '', heading)}"


def _find_holders(schema: JsonObject, block_name: str) -> list[tuple[str, str]]:
    """Return the fields that hold a block, each as the name of the outer block and the field."""
    return [
        (outer, field)
        for outer, definition in schema["$defs"].items()
        for field, entry in definition["properties"].items()
        if entry.get("x-block") == block_name
    ]


def _render_places(schema: JsonObject, block_name: str) -> Iterator[str]:
    """Yield the lines that say where a block may stand."""
    holders = [
        f"`{field}` of [{schema['$defs'][outer]['x-hcl-name']}]({get_page_name(schema, outer)})"
        for outer, field in _find_holders(schema, block_name)
    ]
    places = [f"`{place}`" for place in schema["$defs"][block_name].get("x-places", ())]
    if holders:
        yield f"In YAML and JSON: {', '.join(dict.fromkeys(holders))}."
    yield f"In HCL: {', '.join(places)}." if places else "HCL has no such block."


def _render_example(schema: JsonObject, block_name: str) -> Iterator[str]:
    """Yield the lines of the example of a block, in YAML and in HCL."""
    example = EXAMPLES[block_name]
    is_driver = block_name in schema[DRIVERS_KEY].values()
    holders = _find_holders(schema, block_name)
    yield "```yaml"
    if is_driver:
        driver = schema["$defs"][block_name]["x-hcl-name"]
        yield from render_yaml({"Driver": driver, "Config": example})
    elif holders:
        outer, field = holders[-1] if block_name == "WorkloadIdentity" else holders[0]
        kind = schema["$defs"][outer]["properties"][field]["x-type"]
        wrapped: Any = [example] if kind == "list of blocks" else example
        if kind == "map of blocks":
            wrapped = {example["Name"]: {key: value for key, value in example.items() if key != "Name"}}
        yield from render_yaml({field: wrapped})
    else:
        yield from render_yaml(example)
    yield "```"
    yield ""
    if not schema["$defs"][block_name]["x-hcl-name"]:
        return
    yield "```hcl"
    if is_driver:
        yield f'driver = "{schema["$defs"][block_name]["x-hcl-name"]}"'
        yield ""
    lines = render_hcl(schema, block_name, example, name="config" if is_driver else "")
    yield from format_hcl("\n".join(lines) + "\n").splitlines()
    yield "```"
    yield ""


def _render_fields(schema: JsonObject, properties: JsonObject, *, prefix: str, level: int) -> Iterator[str]:
    """Yield a table of all fields, then a section for each of them."""
    written = {name: entry for name, entry in properties.items() if "x-set-by" not in entry}
    yield "| Field | HCL | Type | Default |"
    yield "|---|---|---|---|"
    for name, entry in written.items():
        anchor = f"{prefix}{name}".lower().replace(".", "")
        hcl = describe_spelling({"name": name, **entry["x-hcl"]}) if "x-hcl" in entry else ""
        yield f"| [`{name}`](#{anchor}) | {hcl} | {entry['x-type']} | {_escape_cell(entry.get('x-default', ''))} |"
    yield ""
    for name, entry in written.items():
        yield from _render_field(schema, f"{prefix}{name}", name, entry, level)
    server_fields = {name: entry for name, entry in properties.items() if "x-set-by" in entry}
    if server_fields:
        yield f"{'#' * level} Fields that servers set"
        yield ""
        yield "Replies of the API contain these fields. In a submitted job they have no effect."
        yield ""
        yield "| Field | Type | Meaning |"
        yield "|---|---|---|"
        for name, entry in server_fields.items():
            yield f"| `{name}` | {entry['x-type']} | {_escape_cell(get_prose(entry).replace(chr(10), ' '))} |"
        yield ""


def get_prose(entry: Mapping[str, Any]) -> str:
    """Return the description of a field without its facts."""
    return str(entry["description"]).partition("\n\nType: ")[0]


def _escape_cell(text: str) -> str:
    return text.replace("|", "\\|")


def _render_field(schema: JsonObject, title: str, name: str, entry: Mapping[str, Any], level: int) -> Iterator[str]:
    """Yield the section of one field."""
    yield f"{'#' * level} {title}"
    yield ""
    yield get_prose(entry)
    yield ""
    unit = f" ({entry['x-unit']})" if "x-unit" in entry else ""
    block = entry.get("x-block")
    link = (
        f": [{schema['$defs'][block]['x-hcl-name'] or _to_words(block)}]({_get_link(schema, block)})"
        if block
        else f": [variable]({VARIABLE_PAGE})"
        if name == "variables"
        else ""
    )
    yield f"- Type: {entry['x-type']}{unit}{link}"
    if "x-values" in entry:
        yield "- Values:"
        yield from (f"  - `{value}`: {meaning}" for value, meaning in entry["x-values"].items())
    for key, label in (
        ("x-default", "Default"), ("x-limits", "Limits"), ("x-effect", "Effect"), ("x-deprecated", "Deprecated"),
    ):  # fmt: skip
        if key in entry:
            yield f"- {label}: {entry[key]}"
    if (example := format_example(name, entry)) is not None:
        yield f"- Example: {example}"
    yield ""


def format_example(name: str, entry: Mapping[str, Any]) -> str | None:
    """Return the example of a field in both spellings, as Markdown; `None` if it has none."""
    lines = build_example_lines(name, entry)
    if lines is None:
        return None
    yaml_line, hcl_line = lines
    return f"`{yaml_line}`" + (f"; in HCL `{hcl_line}`" if hcl_line else "")


def build_example_lines(name: str, entry: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the example of a field as a line of YAML and a line of HCL, which is empty if HCL cannot set the field."""
    if "examples" not in entry or "x-set-by" in entry:
        return None
    value = entry["examples"][0]
    spelling = {"name": name, **entry["x-hcl"]} if "x-hcl" in entry else None
    if isinstance(value, dict):
        yaml_line = f"{name}: {{{', '.join(' '.join(render_yaml({key: item})) for key, item in value.items())}}}"
    else:
        yaml_line = " ".join(line.strip() for line in render_yaml({name: value}))
    if spelling is None or spelling["form"] == "label":
        return yaml_line, ""
    return yaml_line, _format_hcl_example(spelling, value)


def _format_hcl_example(spelling: Mapping[str, str], value: Any) -> str:
    """Return an example as one line of HCL; empty if HCL needs several lines, as for a block with several arguments."""
    if isinstance(value, dict) and (spelling["form"] == "block" or (spelling["form"] == "map" and len(value) > 1)):
        return ""
    if isinstance(value, dict):
        entries = ", ".join(f"{_format_hcl_key(key)} = {format_hcl_value(item)}" for key, item in value.items())
        return (
            f"{spelling['name']} {{ {entries} }}"
            if spelling["form"] == "map"
            else f"{spelling['name']} = {{ {entries} }}"
        )
    return f"{spelling['name']} = {value if spelling.get('is_expression') else format_hcl_value(value)}"


def _format_hcl_key(key: str) -> str:
    """Return the key of an object, in quotes unless it is a name."""
    return key if NAME.fullmatch(key) else format_hcl_value(key)


# -- the index


def _render_index(schema: JsonObject, names: list[str]) -> Iterator[str]:
    """Yield the lines of the index."""
    drivers = set(schema[DRIVERS_KEY].values())
    yield "# The job file"
    yield ""
    yield "A job file describes what runs, how often, and on which machines. You submit it with `wharf job run FILE`. These pages describe every"
    yield "field of a job file, and every option of the drivers. You can use them to:"
    yield ""
    yield "- write a job: start with the [smallest job](#the-smallest-job), then add the [blocks](#blocks) that you need;"
    yield "- look up a field: its page has the type, the unit, the default, the limits and an example, in YAML and in HCL;"
    yield "- look up a field in a terminal: `wharf job explain-field task.resources`;"
    yield "- let your editor check and complete a file in YAML: see [editors](#editors)."
    yield ""
    yield "To change what runs, change the file and run `wharf job plan FILE`, which shows what would happen, and then `wharf job run FILE`."
    yield ""
    yield "## The smallest job"
    yield ""
    yield from _render_example(schema, "Job")
    yield "Both files describe the same job. A job has groups, and a group has tasks. Each of the two allocations of the group `api` runs"
    yield "all tasks of the group on one node."
    yield ""
    yield "## Blocks"
    yield ""
    yield "| Block | In | What it is |"
    yield "|---|---|---|"
    for name in names:
        if name not in drivers:
            yield _render_index_row(schema, name)
    yield f"| [variable]({VARIABLE_PAGE}) | the file | A value that each run of the command line can set. |"
    yield ""
    yield "## Drivers"
    yield ""
    yield "A task names its driver, and gives the options of the driver in `Config`."
    yield ""
    yield "| Driver | What it runs |"
    yield "|---|---|"
    for driver, name in schema[DRIVERS_KEY].items():
        yield f"| [{driver}]({get_page_name(schema, name)}) | {_describe_driver(schema, name)} |"
    yield ""
    yield "A node can have further drivers by [plugins](../node.md#write-a-driver). The options of such a driver are described by its author: Wharf"
    yield "passes them on without a check. The options of device plugins and volume plugins are not part of a job: the operator sets"
    yield "them in the [configuration](../configuration.md) of the node and in the file of the [volume](../volumes.md)."
    yield ""
    yield "## Formats"
    yield ""
    yield "| Subject | YAML and JSON | HCL |"
    yield "|---|---|---|"
    yield "| names | the names of the API, such as `TaskGroups` and `MaxParallel`, in any case; YAML also accepts the names of HCL | blocks and arguments, such as `group` and `max_parallel` |"
    yield '| durations | a text such as `30s`, `1h30m` or `500ms`, or a number of nanoseconds | the same, such as `"30s"` |'
    yield "| a missing field | leave it out; `null` means the same | leave it out; `null` means the same |"
    yield "| repeated blocks | a list, such as `Tasks` | one block for each, such as `task` |"
    yield "| maps, such as `Meta` and `Env` | a map of texts | a block with any names |"
    yield "| several jobs | one job in each file | one job in each file |"
    yield ""
    yield "Units are part of the names or of the pages: memory and disk are in MiB, the processor in MHz. An unknown field is an error, and the"
    yield "message suggests the nearest name. Some fields exist only so that jobs for Nomad can be submitted unchanged: *Effect* on their pages says so."
    yield ""
    yield "## Limits of all fields"
    yield ""
    yield "| Subject | Limit |"
    yield "|---|---|"
    yield f"| a text | {body_limits.MAX_TEXT_CHARS:,} characters |"
    yield f"| a name or ID | {body_limits.MAX_NAME_BYTES} UTF-8 bytes, without control characters |"
    yield f"| a list or map | {body_limits.MAX_ITEMS:,} items |"
    yield f"| a key of a map | {body_limits.MAX_KEY_CHARS:,} characters |"
    yield f"| the whole job | {body_limits.MAX_TOTAL_ITEMS:,} items, and 10 MB as JSON |"
    yield ""
    yield "[Limits of request bodies](../body-limits.md) lists all of them."
    yield ""
    yield from _render_file_limits()
    yield ""
    yield "## Editors"
    yield ""
    yield "Agents serve a JSON Schema of the job file at `/v1/schema/job.json`. Editors with the YAML language server, such as Visual Studio Code,"
    yield "read it if the file begins with this line:"
    yield ""
    yield "```yaml"
    yield format_schema_comment()
    yield "```"
    yield ""
    yield "`wharf job init` writes this line. The schema is part of the package too: `wharf/job_files/job.schema.json`."
    yield ""
    yield "The schema accepts what `wharf job validate` accepts, but it also refuses a duration of the driver `mock` that cannot be read,"
    yield "and an empty block without its required fields. These fail only on the node. The schema cannot check rules that compare several"
    yield "fields, such as a port label that no network has, or a task without `Config` whose driver needs options; words in texts, such as"
    yield "operands, paths and time zones; limits of durations; the items of lists and maps that are defaults of variables; and values of"
    yield "variables from outside."


def _render_file_limits() -> Iterator[str]:
    """Yield the limits of a file in each language, with their reasons."""
    yield "## Limits of a file"
    yield ""
    yield "A file above a limit is refused at the place of the excess, after about a second of CPU time at most. `wharf job fmt` takes up to"
    yield "3 s for the largest file in HCL."
    yield ""
    yield "| Limit | HCL | YAML | JSON | TOML | Reason |"
    yield "|---|---|---|---|---|---|"
    rows = (
        (
            "size", f"{MAX_FILE_BYTES:,} bytes", f"{MAX_SLOW_CHARS:,} characters", "10 MB; 1 MB with variables",
            f"{MAX_SLOW_CHARS:,} characters", "the time to read a long text",
        ),
        (
            "values", f"{MAX_NODES:,} blocks, expressions and templates", f"{yaml_reader.MAX_NODES:,} keys and values",
            f"{MAX_JSON_VALUES:,}", f"{MAX_TOML_VALUES:,} values and parts of keys",
            "the time to read a value: up to 13 µs in HCL, 50 µs in YAML, 10 µs in JSON and 20 µs in TOML",
        ),
        (
            "values after aliases are expanded and maps are merged", "", f"{yaml_reader.MAX_EXPANDED_VALUES:,} keys and values",
            "", "", "memory: a few nested aliases stand for millions of values",
        ),
        ("levels of blocks, lists and maps", MAX_NESTING, MAX_DEPTH, MAX_DEPTH, MAX_DEPTH, "the stack"),
        ("parts of a key with dots", "", "", "", MAX_KEY_PARTS, "the parser takes time in the square of them"),
        (
            "characters of a number", f"{MAX_NUMBER_CHARS:,}", f"{MAX_NUMBER_CHARS:,}", f"{MAX_NUMBER_CHARS:,}; whole numbers 4,300",
            f"{MAX_NUMBER_CHARS:,}", "the time to convert it",
        ),
        (
            "keys and values of a file that `wharf job fmt` formats", "", f"{MAX_FORMATTED_NODES:,}, and {MAX_FORMATTED_CHARS:,} characters",
            "", "", "formatting takes four times as long as reading",
        ),
        (
            "keys and values that `wharf job convert` writes", "", f"{MAX_WRITTEN_NODES:,}", "", "",
            "writing takes 60 µs for each, and the result is read again",
        ),
    )  # fmt: skip
    for row in rows:
        yield f"| {' | '.join(str(cell) or '—' for cell in row)} |"


def _describe_driver(schema: JsonObject, name: str) -> str:
    """Return what a driver runs: the description of its options without their mention."""
    text: str = schema["$defs"][name]["description"].removeprefix("The options of ")
    return text[0].upper() + text[1:]


def _render_index_row(schema: JsonObject, name: str) -> str:
    definition = schema["$defs"][name]
    title = definition["x-hcl-name"] or _to_words(name)
    holders = [schema["$defs"][outer]["x-hcl-name"] for outer, _ in _find_holders(schema, name)]
    return f"| [{title}]({get_page_name(schema, name)}) | {', '.join(dict.fromkeys(holders))} | {_escape_cell(definition['description'])} |"
