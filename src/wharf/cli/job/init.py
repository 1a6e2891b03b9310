"""`wharf job init`: writes an example job file that runs unchanged and explains its fields."""

from pathlib import Path
from typing import Final

import click

from wharf.cli.common.errors import CliError

EXAMPLE_JOB: Final = """\
# `wharf job plan {file}` shows what submitting this job would change; `wharf job run {file}` submits it.
ID: example

# service: runs until it is stopped. batch: runs to its end. system: one per node. sysbatch: to its end, once per node.
Type: service

TaskGroups:
  # Tasks of one group run together on one node. Count: the number of instances.
  - Name: web
    Count: 3

    # Rolling update: how many allocations are replaced at a time, and how long each must be healthy.
    Update:
      MaxParallel: 1
      MinHealthyTime: 2s
      HealthyDeadline: 1m
      ProgressDeadline: 2m

    Tasks:
      - Name: main
        # mock starts no program; its Config sets what it does: run_for, exit_code, start_error. To run a program of the
        # machine, use raw_exec with Config: {{command: /bin/sleep, args: [infinity]}}
        Driver: mock
        Resources:
          CPU: 100 # MHz
          MemoryMB: 64
"""


@click.command
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False), default=Path("example.yaml"))
@click.option("--short", is_flag=True, help="Omit the comments.")
def init(file: Path, short: bool) -> None:
    """Write an example job file.

    FILE is example.yaml by default. An existing file is not overwritten.

    wharf job init
    """
    text = EXAMPLE_JOB.format(file=file)
    if short:
        lines = (line.partition(" # ")[0] for line in text.splitlines() if not line.lstrip().startswith("#"))
        text = "".join(f"{line}\n" for line in lines if line)
    try:
        with file.open("x", encoding="utf-8") as target:
            target.write(text)
    except FileExistsError:
        raise CliError(f"{file} already exists: choose another file name") from None
    except OSError as error:
        raise CliError(f"cannot write {file}: {error.strerror}") from error
    click.echo(f"wrote {file}; `wharf job run {file}` submits it")
