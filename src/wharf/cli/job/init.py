"""`wharf job init`: writes an example job file that runs unchanged and explains its fields."""

import os
import re
from pathlib import Path
from typing import Final

import click

from wharf.cli.common.errors import CliError
from wharf.cli.common.sentences import print_sentence
from wharf.cli.job.examples import EXAMPLES, KINDS

LANGUAGES: Final = ("yaml", "hcl")
YAML_SUFFIXES: Final = (".yaml", ".yml")
DEFAULT_NAME: Final = "example"
_UNUSUAL_CHARACTERS: Final = re.compile(r"[^A-Za-z0-9._-]+")
_COMMENT: Final = re.compile(r"(?m)^[ ]*#.*\n|[ ]+#[ ].*$")
_HELP: Final = {
    "service": "A program that runs until it is stopped (the default).",
    "batch": "A program that runs to its end.",
    "docker": "A service in a container.",
    "periodic": "A batch job that is launched at times.",
    "parameterized": "A batch job that is launched with a payload and meta values.",
    "system": "A program that runs on every node.",
}


@click.command
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False), required=False)
@click.option("--service", "kinds", flag_value="service", multiple=True, help=_HELP["service"])
@click.option("--batch", "kinds", flag_value="batch", multiple=True, help=_HELP["batch"])
@click.option("--docker", "kinds", flag_value="docker", multiple=True, help=_HELP["docker"])
@click.option("--periodic", "kinds", flag_value="periodic", multiple=True, help=_HELP["periodic"])
@click.option("--parameterized", "kinds", flag_value="parameterized", multiple=True, help=_HELP["parameterized"])
@click.option("--system", "kinds", flag_value="system", multiple=True, help=_HELP["system"])
@click.option("--yaml", "language", flag_value="yaml", help="Write YAML (the default).")
@click.option("--hcl", "language", flag_value="hcl", help="Write HCL. An ending of FILE such as .hcl selects it too.")
@click.option("--short", is_flag=True, help="Omit the comments.")
def init(file: Path | None, kinds: tuple[str, ...], language: str | None, short: bool) -> None:
    """Write an example job file.

    The job is named like FILE. FILE is named after the kind of job by default, such as batch.yaml or batch.hcl, and
    example.yaml without a kind. An existing file is not overwritten.

    wharf job init --batch --hcl
    """
    if len(set(kinds)) > 1:
        options = " and ".join(f"--{kind}" for kind in KINDS if kind in kinds)
        raise click.UsageError(f"{options} exclude each other: use one of them")
    kind = kinds[0] if kinds else "service"
    language = _choose_language(file, language)
    file = file if file is not None else Path(f"{kinds[0] if kinds else DEFAULT_NAME}.{language}")
    name = _UNUSUAL_CHARACTERS.sub("-", file.stem).strip("-") or DEFAULT_NAME
    text = build_example(kind, language, name=name, file=str(file), has_comments=not short)
    try:
        with file.open("x", encoding="utf-8") as target:
            target.write(text)
    except FileExistsError:
        raise CliError(f"{file} already exists: choose another file name") from None
    except OSError as error:
        raise CliError(f"cannot write {file}: {error.strerror}") from error
    print_sentence(f"wrote {file}; `wharf job run {file}` submits it")


def _choose_language(file: Path | None, option: str | None) -> str:
    """Return the language of the option, or that of the ending of the file. Raises CliError if they disagree."""
    from wharf.job_files.job_file import HCL_SUFFIXES

    suffix = file.suffix if file is not None else ""
    by_suffix = "hcl" if suffix in HCL_SUFFIXES else "yaml" if suffix in YAML_SUFFIXES else None
    if by_suffix is None and suffix in (".json", ".toml"):
        raise CliError(
            f"{file}: examples are in YAML or HCL: use the ending .yaml or .hcl; `wharf job convert` writes {suffix[1:].upper()}"
        )
    if option is not None and by_suffix not in (option, None):
        raise CliError(
            f"{file} has the ending of {by_suffix.upper()}, and --{option} writes {option.upper()}: change one of them"
        )
    return option or by_suffix or "yaml"


def build_example(kind: str, language: str, *, name: str, file: str, has_comments: bool = True) -> str:
    """Return an example job."""
    from wharf.contract.client import read_settings
    from wharf.job_files.schema import SCHEMA_URL_PATH

    text = EXAMPLES[kind, language]
    if not has_comments:
        # The texts hold no other `#`.
        text = _COMMENT.sub("", text)
        text = re.sub(r"\n{3,}", "\n\n", text).lstrip("\n")
    address = read_settings(os.environ).addresses[0].rstrip("/")
    return text.replace("{schema}", f"{address}{SCHEMA_URL_PATH}").replace("{file}", file).replace("{name}", name)
