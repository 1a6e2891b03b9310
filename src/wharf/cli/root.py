"""The root command `wharf`, its table of commands, and `main`, which turns failures into one line and an exit code."""

import errno
import io
import os
import re
import sys
from collections.abc import Sequence
from typing import Final

import click

from wharf import __version__
from wharf.cli.lazy_group import (
    NOMAD_PROGRAM,
    NOT_SUPPORTED_BY_NODES,
    SLURM_PROGRAMS,
    CommandEntry,
    LazyGroup,
    RenamedOption,
    add_help_option,
)

COMMANDS: Final = {
    "dev": CommandEntry("wharf.cli.dev", "dev", "Run a whole cluster on this machine, for development."),
    "agent": CommandEntry("wharf.cli.agent", "agent", "Run a server, a node or both, from configuration files."),
    "job": CommandEntry("wharf.cli.job.group", "job", "Submit jobs, watch them and change them."),
    "flow": CommandEntry(
        "wharf.cli.flow.group", "flow", "Watch runs of jobs with steps; approve, cancel and retry them."
    ),
    "submit": CommandEntry(
        "wharf.cli.submission.submit", "submit", "Run a script or a command on the cluster, without a job file."
    ),
    "node": CommandEntry("wharf.cli.node.group", "node", "Show nodes and drain them."),
    "alloc": CommandEntry(
        "wharf.cli.alloc.group", "alloc", "Show, stop and restart allocations; read their logs and files."
    ),
    "deployment": CommandEntry("wharf.cli.deployment", "deployment", "Watch deployments; promote, pause or fail them."),
    "eval": CommandEntry("wharf.cli.evaluation", "evaluation", "Show evaluations and the decisions of the scheduler."),
    "namespace": CommandEntry("wharf.cli.namespace", "namespace", "Create, change and show namespaces."),
    "quota": CommandEntry("wharf.cli.quota", "quota", "Limit the resources that namespaces may use."),
    "service": CommandEntry("wharf.cli.service", "service", "Show registered services and their addresses."),
    "scaling": CommandEntry("wharf.cli.scaling", "scaling", "Show scaling policies."),
    "var": CommandEntry("wharf.cli.variable", "var", "Store encrypted variables, and lock them."),
    "volume": CommandEntry("wharf.cli.volume", "volume", "Create and show host volumes."),
    "acl": CommandEntry("wharf.cli.acl.group", "acl", "Manage tokens, policies, roles and logins."),
    "login": CommandEntry("wharf.cli.login", "login", "Log in and print a token."),
    "status": CommandEntry("wharf.cli.cluster", "status", "Show the status of the cluster, or what an id belongs to."),
    "top": CommandEntry(
        "wharf.cli.top.command", "top", "Show the use of nodes, the largest jobs, and what waits, live on a terminal."
    ),
    "search": CommandEntry(
        "wharf.cli.cluster", "search", "Find jobs, nodes and other objects by a part of their name."
    ),
    "ui": CommandEntry("wharf.cli.ui", "ui", "Open the pages of the cluster in the browser."),
    "monitor": CommandEntry("wharf.cli.cluster", "monitor", "Follow the log of an agent."),
    "server": CommandEntry("wharf.cli.cluster", "server", "Show servers."),
    "system": CommandEntry("wharf.cli.cluster", "system", "Run garbage collection and other maintenance."),
    "config": CommandEntry("wharf.cli.config", "config", "Check and show configuration."),
    "operator": CommandEntry(
        "wharf.cli.operator.group", "operator", "Operate a cluster: API requests, scheduler, servers, keys, snapshots."
    ),
    "import": CommandEntry(
        "wharf.cli.nomad.importing", "import_group", "Copy the configuration and the jobs of another scheduler."
    ),
    "compat": CommandEntry(
        "wharf.cli.nomad.compat", "compat", "Let scripts that call the commands of other schedulers call Wharf."
    ),
    "sbatch": CommandEntry("wharf.cli.slurm.sbatch", "sbatch", "Submit a script of Slurm."),
    "squeue": CommandEntry(
        "wharf.cli.slurm.squeue", "squeue", "List batch jobs that wait and run, with Slurm's columns."
    ),
    "scancel": CommandEntry("wharf.cli.slurm.scancel", "scancel", "Stop batch jobs, or elements of an array."),
    "sacct": CommandEntry(
        "wharf.cli.slurm.sacct", "sacct", "List batch jobs that run or have ended, with Slurm's columns."
    ),
    "seff": CommandEntry("wharf.cli.slurm.seff", "seff", "Show how much of its cores and memory a batch job uses."),
    "tls": CommandEntry("wharf.cli.tls", "tls", "Create TLS certificates."),
    "gateway": CommandEntry("wharf.cli.limits.gateway", "gateway", "Run a rate limiting proxy for an HTTP service."),
    "limits": CommandEntry("wharf.cli.limits.group", "limits", "Write rate limit rules and operate a rate limiter."),
    "completion": CommandEntry(
        "wharf.cli.completion", "completion", "Print a script that completes commands in your shell."
    ),
    "version": CommandEntry("wharf.cli.version", "version", "Print the version."),
}

_CHANGES: Final = "wharf.cli.job.changes"
_PLAN: Final = "wharf.cli.job.plan"
_NODES: Final = "wharf.cli.node.group"
ALIASES: Final = {
    "run": CommandEntry(_CHANGES, "run", "wharf job run"),
    "plan": CommandEntry(_PLAN, "plan", "wharf job plan"),
    "stop": CommandEntry(_CHANGES, "stop", "wharf job stop"),
    "start": CommandEntry(_CHANGES, "start", "wharf job start"),
    "validate": CommandEntry(_PLAN, "validate", "wharf job validate"),
    "inspect": CommandEntry("wharf.cli.job.views", "inspect", "wharf job inspect"),
    "init": CommandEntry("wharf.cli.job.init", "init", "wharf job init"),
    "fmt": CommandEntry("wharf.cli.job.convert", "format_files", "wharf job fmt"),
    "node-status": CommandEntry(_NODES, "status", "wharf node status"),
    "node-drain": CommandEntry(_NODES, "drain", "wharf node drain"),
    "alloc-status": CommandEntry("wharf.cli.alloc.group", "status", "wharf alloc status"),
    "logs": CommandEntry("wharf.cli.alloc.logs", "logs", "wharf alloc logs"),
    "action": CommandEntry("wharf.cli.job.action", "action", "wharf job action"),
    "exec": CommandEntry("wharf.cli.alloc.exec", "execute", "wharf alloc exec"),
    "fs": CommandEntry("wharf.cli.alloc.files", "fs", "wharf alloc fs"),
    "eval-status": CommandEntry("wharf.cli.evaluation", "status", "wharf eval status"),
    "server-members": CommandEntry("wharf.cli.cluster", "members", "wharf server members"),
    "server-force-leave": CommandEntry("wharf.cli.cluster", "force_leave", "wharf server force-leave"),
    "debug": CommandEntry("wharf.cli.operator.group", "debug", "wharf operator debug"),
}
"""Short names and Nomad's names of commands, each with the command that it runs. Help does not list them."""
UNAVAILABLE_COMMANDS: Final = {
    "client-config": NOT_SUPPORTED_BY_NODES,
    "plugin": "drivers are part of the nodes; `wharf node status NODE` lists the drivers of a node",
    "agent-info": "use `wharf operator api /v1/agent/self`",
    "check": "use `wharf operator api /v1/agent/health`",
    "license": "no license is needed: all features are free",
}
"""Commands of Nomad that Wharf does not have, each with the text of the error."""
UNAVAILABLE_SLURM_COMMANDS: Final = {
    "srun": "use `wharf submit --wait -- COMMAND`, or in a running job `wharf alloc exec -it ALLOC COMMAND`",
    "salloc": "nodes cannot be held without a job: submit a script with `wharf sbatch`, and open a shell in it with "
    "`wharf alloc exec -it ALLOC bash`",
    "sattach": "use `wharf job logs -f JOB`",
    "sinfo": "use `wharf node status`, and `wharf node pool list` for partitions",
    "scontrol": "use `wharf job inspect JOB` for `show job`, `wharf node status NODE` for `show node`, "
    "`wharf node drain --enable NODE` for `update nodename`, and `wharf job rerun JOB` for `requeue` of an array",
    "sacctmgr": "use `wharf namespace` for accounts, and `wharf quota` for their limits",
    "sstat": "use `wharf top`, or `wharf alloc stats ALLOC`",
    "sprio": "use `wharf job explain JOB`, which shows the place of a job in the queue",
    "sshare": "the page /ui/queue shows the shares of namespaces; `wharf ui` opens the pages",
    "sreport": "servers do not store what ended jobs used; use `wharf sacct --format=JobID,User,Account,CPUTime`",
}
"""Commands of Slurm that Wharf does not have, each with the text of the error."""

_EXCERPT_LINE: Final = re.compile(r" {3}| *[0-9]* \| ")
"""A line below a diagnostic: a line of a file, its mark, or what to write instead."""
EXIT_FAILED: Final = 1
EXIT_INTERRUPTED: Final = 130


@click.group(
    name="wharf",
    cls=LazyGroup,
    entries=COMMANDS,
    aliases=ALIASES,
    unavailable=UNAVAILABLE_COMMANDS | UNAVAILABLE_SLURM_COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(
    __version__, "--version", message="wharf %(version)s", cls=RenamedOption, former_names=["-version"]
)
def root() -> None:
    """Run jobs on a cluster of machines, and see where each job runs and why.

    `wharf dev` starts a whole cluster on this machine.
    """


add_help_option(root)


def main(arguments: Sequence[str] | None = None, environment: object = None, program: str = "") -> None:
    """Run a command and exit the process. `arguments` default to those of the process; then this function never returns.

    `environment` is the `CommandEnvironment` of commands that call a server; tests pass their own. `program` is the name
    by which the process was called. If it is `nomad`, the arguments are those of Nomad's command line. If it is the name of
    a command of Slurm, such as `sbatch`, that command runs.
    """
    words = sys.argv[1:] if arguments is None else arguments
    if arguments is None and not program:
        program = os.path.basename(sys.argv[0])
    if program in SLURM_PROGRAMS:
        words = [program, *words]
    _escape_unencodable_output()
    _protect_terminals()
    try:
        exit_code = _run(words, environment, NOMAD_PROGRAM if program == NOMAD_PROGRAM else "wharf")
        _flush_output()
    except BrokenPipeError:
        # The reader of the output closed the pipe, as `head` does. Flushing stdout at exit would fail again.
        sys.stdout = sys.stderr
        exit_code = EXIT_FAILED
    except OSError as error:
        sys.stdout = sys.stderr
        file = error.filename if isinstance(error.filename, str) else "the output"
        verb = "write" if error.filename is None or error.errno == errno.ENOSPC else "use"
        _print_error(f"cannot {verb} {file}: {error.strerror or error}", words)
        exit_code = EXIT_FAILED
    if arguments is None:
        from wharf.world.process_exit import exit_process

        exit_process(exit_code)
    if exit_code:
        sys.exit(exit_code)


def _escape_unencodable_output() -> None:
    """Let characters that the encoding of the output lacks be written as escapes, so that printing them never fails."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")


def _protect_terminals() -> None:
    """Escape characters in the output that would control the user's terminal."""
    if any(stream is not None and stream.isatty() for stream in (sys.stdout, sys.stderr)):
        from wharf.cli.common.terminal import protect_terminals  # Output to files and pipes does not need it.

        protect_terminals()


def _flush_output() -> None:
    """Write what was printed. At the exit of the process, an error could not be reported."""
    if sys.stdout is not None:
        sys.stdout.flush()


def _print_error(text: str, arguments: Sequence[str]) -> None:
    """Print an error text, one line each, without secrets. Long and unprintable arguments are shortened and escaped.

    The lines of an excerpt from a file, and what to do about it, belong to the line before them.
    """
    from wharf.cli.common.errors import hide_secrets, make_printable
    from wharf.cli.common.rendering import wrap_for_terminal

    for line in make_printable(hide_secrets(text, arguments), arguments).splitlines():
        shown = line if _EXCERPT_LINE.match(line) else wrap_for_terminal(f"wharf: {line}", sys.stderr)
        click.echo(shown, err=True)


def _run(arguments: Sequence[str], environment: object, program: str) -> int:
    """Run a command and return its exit code. Prints its error."""
    try:
        if program == NOMAD_PROGRAM:
            from wharf.cli.nomad.compat import translate_arguments

            arguments = translate_arguments(arguments)
        exit_code = root.main(list(arguments), prog_name=program, standalone_mode=False, obj=environment)
    except click.exceptions.Exit as exit_request:
        return exit_request.exit_code
    except click.Abort as abort:
        # The terminal's line may hold a prompt or `^C`: begin a new one. After Ctrl-C, click has done so.
        has_new_line = isinstance(abort.__cause__, KeyboardInterrupt | EOFError)
        click.echo("wharf: stopped" if has_new_line else "\nwharf: stopped", err=True)
        return EXIT_INTERRUPTED
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return EXIT_FAILED
    except click.ClickException as error:
        from wharf.cli.common.errors import format_error

        _print_error(format_error(error, arguments), arguments)
        # `CliError` has the attribute `code`. Its module is not imported here, because help must load quickly.
        return int(getattr(error, "code", EXIT_FAILED))
    return (
        exit_code if isinstance(exit_code, int) else 0
    )  # click returns the code of `Context.exit` instead of raising.
