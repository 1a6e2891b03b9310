"""`wharf job init`: a job file to begin with, that runs as it stands and says what its parts are for."""

from pathlib import Path
from typing import Final

import click

from wharf.cli.common.errors import CliError

EXAMPLE_JOB: Final = """\
# A job: what should run. `wharf job plan {file}` shows what submitting it would do, `wharf job run {file}` does it.
ID: example

# service: it goes on until it is stopped. batch: it ends. system: one on every node. sysbatch: once on every node.
Type: service

TaskGroups:
  # What runs together on one node. Count: how many of these there are.
  - Name: web
    Count: 3

    # How a new version takes the place of an old one: so many at a time, each for so long in good health.
    Update:
      MaxParallel: 1
      MinHealthyTime: 2s
      HealthyDeadline: 1m
      ProgressDeadline: 2m

    Tasks:
      - Name: main
        # mock starts nothing, and does as Config tells: run_for, exit_code, start_error. raw_exec runs a program of the
        # machine: with Config: {{command: /bin/sleep, args: [infinity]}}
        Driver: mock
        Resources:
          CPU: 100 # MHz
          MemoryMB: 64
"""


@click.command
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False), default=Path("example.yaml"))
@click.option("--short", is_flag=True, help="Without the remarks.")
def init(file: Path, short: bool) -> None:
    """Write an example of a job file, to begin with.

    FILE is example.yaml if nothing else is said. A file that is there is not replaced.

    wharf job init
    """
    text = EXAMPLE_JOB.format(file=file)
    if short:
        told = (line.partition(" # ")[0] for line in text.splitlines() if not line.lstrip().startswith("#"))
        text = "".join(f"{line}\n" for line in told if line)
    try:
        with file.open("x", encoding="utf-8") as writing:
            writing.write(text)
    except FileExistsError:
        raise CliError(f"{file} is there already: name another file") from None
    except OSError as error:
        raise CliError(f"{file} cannot be written: {error.strerror}") from error
    click.echo(f"{file} is written; `wharf job run {file}` submits it")
