"""The root of all commands, and how a command that fails says so: one line, an exit code, no traceback."""

import errno
import sys
from collections.abc import Sequence
from typing import Final

import click

from wharf import __version__
from wharf.cli.lazy_group import NOT_SUPPORTED_BY_NODES, CommandEntry, LazyGroup

COMMANDS: Final = {
    "dev": CommandEntry("wharf.cli.dev", "dev", "Run a whole cluster here, for trying and developing."),
    "agent": CommandEntry("wharf.cli.agent", "agent", "Run a server, a node or both, from configuration."),
    "job": CommandEntry("wharf.cli.job.group", "job", "Submit jobs, watch them and change them."),
    "node": CommandEntry("wharf.cli.node.group", "node", "Show machines, and empty them."),
    "alloc": CommandEntry(
        "wharf.cli.alloc.group", "alloc", "Show allocations, stop and restart them, and look into their tasks."
    ),
    "deployment": CommandEntry(
        "wharf.cli.deployment", "deployment", "Watch rollouts, promote canaries, pause and end rollouts."
    ),
    "eval": CommandEntry(
        "wharf.cli.evaluation", "evaluation", "Show evaluations: what the scheduler looked at, and what it decided."
    ),
    "namespace": CommandEntry("wharf.cli.namespace", "namespace", "Make namespaces, and show them."),
    "quota": CommandEntry("wharf.cli.quota", "quota", "Bound what namespaces use."),
    "service": CommandEntry("wharf.cli.service", "service", "Show what jobs offer by a name, and where it is."),
    "scaling": CommandEntry("wharf.cli.scaling", "scaling", "Show within which bounds counts may be scaled."),
    "var": CommandEntry("wharf.cli.variable", "var", "Keep values encrypted, and lock them."),
    "volume": CommandEntry("wharf.cli.volume", "volume", "Folders of hosts that jobs may ask for."),
    "acl": CommandEntry("wharf.cli.acl.group", "acl", "Say who may do what."),
    "login": CommandEntry("wharf.cli.login", "login", "Log in, and print a token."),
    "status": CommandEntry("wharf.cli.cluster", "status", "Show what an id leads to, or how the cluster stands."),
    "search": CommandEntry("wharf.cli.cluster", "search", "Find everything whose name has a text in it."),
    "monitor": CommandEntry("wharf.cli.cluster", "monitor", "Follow the log of an agent."),
    "server": CommandEntry("wharf.cli.cluster", "server", "Show servers."),
    "system": CommandEntry("wharf.cli.cluster", "system", "Tidy up."),
    "config": CommandEntry("wharf.cli.config", "config", "Check and show configuration."),
    "operator": CommandEntry(
        "wharf.cli.operator.group", "operator", "Requests, scheduling, servers, keys, snapshots, faults."
    ),
    "tls": CommandEntry("wharf.cli.tls", "tls", "Make certificates."),
    "gateway": CommandEntry("wharf.cli.limits.gateway", "gateway", "Put limits in front of an HTTP service."),
    "limits": CommandEntry("wharf.cli.limits.group", "limits", "Write rules, and operate the limiter of a service."),
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
    "node-status": CommandEntry(_NODES, "status", "wharf node status"),
    "node-drain": CommandEntry(_NODES, "drain", "wharf node drain"),
    "alloc-status": CommandEntry("wharf.cli.alloc.group", "status", "wharf alloc status"),
    "logs": CommandEntry("wharf.cli.alloc.logs", "logs", "wharf alloc logs"),
    "action": CommandEntry("wharf.cli.job.action", "action", "wharf job action"),
    "exec": CommandEntry("wharf.cli.alloc.exec", "execute", "wharf alloc exec"),
    "fs": CommandEntry("wharf.cli.alloc.files", "fs", "wharf alloc fs"),
    "eval-status": CommandEntry("wharf.cli.evaluation", "status", "wharf eval status"),
    "server-members": CommandEntry("wharf.cli.cluster", "members", "wharf server members"),
    "debug": CommandEntry("wharf.cli.operator.group", "debug", "wharf operator debug"),
}
"""Short and old names, with what each stands for."""
UNAVAILABLE_COMMANDS: Final = {
    "client-config": NOT_SUPPORTED_BY_NODES,
    "plugin": "drivers are part of the nodes; `wharf node status NODE` names those of a node",
    "agent-info": "`wharf operator api /v1/agent/self` tells it",
    "check": "`wharf operator api /v1/agent/health` tells it",
    "ui": "there are no pages yet; a server's /v1/docs tells of its API",
    "fmt": "job files are YAML or JSON, which any editor sets out",
    "license": "every feature is free: there is no licence",
}
"""What people may look for, with what there is in its place."""

EXIT_FAILED: Final = 1
EXIT_INTERRUPTED: Final = 130


@click.group(
    name="wharf",
    cls=LazyGroup,
    entries=COMMANDS,
    also=ALIASES,
    missing=UNAVAILABLE_COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, message="wharf %(version)s")
def root() -> None:
    """Wharf runs a team's machines: submit jobs, and they are placed, started, watched and explained.

    `wharf dev` starts a whole cluster on this machine.
    """


def main(arguments: Sequence[str] | None = None, environment: object = None) -> None:
    """Without arguments those of the process. `surroundings`: what commands that ask servers are given (`speaking`)."""
    try:
        ended = root.main(arguments, prog_name="wharf", standalone_mode=False, obj=environment)
    except click.exceptions.Exit as end:
        sys.exit(end.exit_code)
    except click.Abort:
        click.echo("\nwharf: stopped", err=True)  # Whatever was asked or shown stands on the line before.
        sys.exit(EXIT_INTERRUPTED)
    except click.exceptions.NoArgsIsHelpError as help_wanted:
        click.echo(help_wanted.format_message())
        sys.exit(EXIT_FAILED)
    except click.ClickException as error:
        from wharf.cli.common.errors import format_error

        for line in format_error(error).splitlines():
            click.echo(f"wharf: {line}", err=True)
        sys.exit(getattr(error, "code", EXIT_FAILED))  # Of `failing.Failed`, which a page of help does not load.
    except BrokenPipeError:
        # Whoever read our output has had enough, as `head` does. Nothing more may be written, at exit either.
        sys.stdout = sys.stderr
        sys.exit(EXIT_FAILED)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        sys.stdout = sys.stderr
        click.echo(f"wharf: {error.filename or 'the output'} cannot be written: {error.strerror}", err=True)
        sys.exit(EXIT_FAILED)
    else:
        if isinstance(ended, int):  # A command that ended early, with the code that it chose.
            sys.exit(ended)
