"""The options of `sbatch`: those that are translated, those without an effect, and those that are refused, with the reason."""

from typing import Final

from wharf.cli.slurm.option_parser import OptionValue, SlurmOption

_FLAG: Final = OptionValue.NONE
_MAYBE: Final = OptionValue.OPTIONAL

TRANSLATED: Final = (
    SlurmOption("account", "A", help="recorded as metadata; `sacct` shows it"),
    SlurmOption("array", "a", help="an array; indexes that do not begin at 0 become items"),
    SlurmOption("begin", "b", help="only `now`"),
    SlurmOption("chdir", "D", help="working folder on the node"),
    SlurmOption("comment", help="description of the job"),
    SlurmOption("constraint", "C", help="words in the metadata `features` of nodes, joined by & or |"),
    SlurmOption("cpus-per-task", "c", help="cores"),
    SlurmOption(
        "dependency",
        "d",
        help="needs between jobs: afterok, afternotok, afterany; singleton becomes a lock; the other kinds are refused",
    ),
    SlurmOption("error", "e", help="file for error output; without it, `wharf job logs`"),
    SlurmOption("exclude", "x", help="names of nodes that are not used"),
    SlurmOption("export", help="variables; those of your shell only by name"),
    SlurmOption("gpus", "G", help="devices of the type gpu"),
    SlurmOption("gpus-per-node", help="devices of the type gpu"),
    SlurmOption("gpus-per-task", help="devices of the type gpu"),
    SlurmOption("gres", help="devices, such as gpu:2 or gpu:a100:1"),
    SlurmOption("job-name", "J", help="name of the job"),
    SlurmOption("mem", help="memory; a number without a unit is MiB"),
    SlurmOption("mem-per-cpu", help="memory for each core"),
    SlurmOption("mem-per-gpu", help="memory for each gpu"),
    SlurmOption("nice", "", _MAYBE, help="lower priority: 50 - N/10"),
    SlurmOption(
        "no-requeue", "", _FLAG, help="if its node is lost, the job waits for the node instead of running again"
    ),
    SlurmOption("nodelist", "w", help="the name of one node"),
    SlurmOption("nodes", "N", help="only 1"),
    SlurmOption("ntasks", "n", help="cores: ntasks × cpus-per-task on one node"),
    SlurmOption("ntasks-per-node", help="as --ntasks"),
    SlurmOption("open-mode", help="append or truncate, for --output and --error"),
    SlurmOption("output", "o", help="file for output; without it, `wharf job logs`"),
    SlurmOption("partition", "p", help="node pool"),
    SlurmOption("qos", "q", help="recorded as metadata; has no other effect"),
    SlurmOption("requeue", "", _FLAG, help="the default: the job runs again if its node is lost"),
    SlurmOption("signal", help="signal before the time limit"),
    SlurmOption("time", "t", help="time limit"),
    SlurmOption("tmp", help="disk space"),
)
"""Options in scripts and on the command line that become part of the job. `help` is what they become."""
LOCAL: Final = (
    SlurmOption("parsable", "", _FLAG, help="print only the id of the job"),
    SlurmOption("test-only", "", _FLAG, help="print the job as JSON, and do not submit it"),
    SlurmOption("wait", "W", _FLAG, help="follow the job, and exit with the exit code of the script"),
    SlurmOption("wrap", help="the command to run, instead of a script"),
)
"""Options about the command itself."""

WITHOUT_EFFECT: Final = {
    "mail-type": "no mail is sent; use `wharf sbatch --wait` and a mail program, or the event stream (documentation page Streams of records)",
    "mail-user": "no mail is sent",
    "quiet": "notes go to standard error: redirect it",
    "verbose": "notes are always printed",
    "get-user-env": "a task has the variables of --export and of its node",
    "hint": "cores are whole cores",
    "threads-per-core": "cores are whole cores",
    "ntasks-per-core": "cores are whole cores",
    "distribution": "all tasks run on one node",
    "mem-bind": "the node decides",
    "kill-on-invalid-dep": "a job whose dependency can never hold always ends at once",
    "no-kill": "the job runs on one node",
    "overcommit": "use --cpus-per-task to request what the script uses",
    "oversubscribe": "cores of a job belong to it alone",
    "wckey": "accounting does not use it",
    "ignore-pbs": "lines of PBS are not read",
    "acctg-freq": "nodes measure at a fixed interval",
    "propagate": "limits are those of the node",
    "profile": "`wharf top` and the pages show what tasks use",
    "contiguous": "the job runs on one node",
    "spread-job": "the job runs on one node",
    "use-min-nodes": "the job runs on one node",
    "switches": "the job runs on one node",
}
"""Options that change neither what runs nor where, with what to know about them."""
REFUSED: Final = {
    "batch": "there is one kind of node for a job: use --constraint",
    "bb": "there are no burst buffers: copy the data in the script",
    "bbf": "there are no burst buffers: copy the data in the script",
    "clusters": "a command calls one cluster: choose it with --address",
    "cluster-constraint": "a command calls one cluster: choose it with --address",
    "container": "use a job file with the driver docker",
    "core-spec": "the configuration of a node reserves its cores: remove the option",
    "cores-per-socket": "nodes do not report sockets: use --cpus-per-task",
    "cpu-freq": "the frequency cannot be set: remove the option",
    "deadline": "jobs have no deadline: use --time, and stop the job with `wharf scancel`",
    "exclusive": "a job cannot reserve a whole node: request its cores and memory with --cpus-per-task and --mem",
    "gid": "the user of a task is set in a job file: submit as that user, or use a job file",
    "gpu-bind": "the node assigns devices: remove the option",
    "gpu-freq": "the frequency cannot be set: remove the option",
    "gpus-per-socket": "nodes do not report sockets: use --gpus",
    "hold": "a held job does not exist: submit it when it may run",
    "input": "standard input of a task is empty: read the file in the script",
    "licenses": "licenses are not counted: limit an array with %N, or a namespace with a quota",
    "mcs-label": "use a namespace: --namespace",
    "network": "networks are set in a job file",
    "ntasks-per-gpu": "use --ntasks and --gpus",
    "ntasks-per-socket": "nodes do not report sockets: use --ntasks",
    "power": "power is not controlled: remove the option",
    "priority": "Slurm's priorities have another scale: use --nice, or `wharf submit --priority`",
    "reboot": "nodes are not restarted for a job: remove the option",
    "reservation": "reservations do not exist: use a node pool (--partition)",
    "sockets-per-node": "nodes do not report sockets: use --cpus-per-task",
    "thread-spec": "the configuration of a node reserves its cores: remove the option",
    "time-min": "a time limit is not shortened: use --time",
    "tres-per-task": "use --cpus-per-task, --mem and --gres",
    "uid": "the user of a task is set in a job file: submit as that user, or use a job file",
    "x11": "tasks have no display: use `wharf alloc exec`",
}
"""Options that would change what runs, where or when, and cannot be translated: the reason, and what to do instead."""
_LETTERS: Final = {
    "quiet": "Q", "verbose": "v", "distribution": "m", "no-kill": "k", "overcommit": "O", "oversubscribe": "s",
    "clusters": "M", "core-spec": "S", "hold": "H", "input": "i", "licenses": "L",
}  # fmt: skip
_FLAGS: Final = frozenset({
    "quiet", "verbose", "overcommit", "oversubscribe", "contiguous", "spread-job", "use-min-nodes", "ignore-pbs", "hold",
    "reboot", "wait-all-nodes",
})  # fmt: skip
_OPTIONAL: Final = frozenset({"exclusive", "get-user-env", "no-kill", "propagate", "x11"})


def _build_option(name: str, text: str) -> SlurmOption:
    value = _FLAG if name in _FLAGS else _MAYBE if name in _OPTIONAL else OptionValue.REQUIRED
    return SlurmOption(name, _LETTERS.get(name, ""), value, text)


SBATCH_OPTIONS: Final = (
    *TRANSLATED,
    *LOCAL,
    *(_build_option(name, text) for name, text in (WITHOUT_EFFECT | REFUSED).items()),
)
"""All options of `sbatch` that are known."""
