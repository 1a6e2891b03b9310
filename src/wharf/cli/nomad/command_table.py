"""The commands and options of Nomad's command line, and what `wharf` runs for each. Data only; `compat` applies it.

The names are those of Nomad's published documentation.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

CONNECTION_OPTIONS: Final = (
    "address= region= namespace= token= ca-cert= ca-path= client-cert= client-key= tls-server-name= tls-skip-verify "
    "no-color force-color"
)
"""Options of every command that calls a server. They have the same names in Wharf."""
POSITIONAL: Final = "ARGUMENT"
"""The new name of an option whose value is an argument in Wharf."""


class NomadCommand(NamedTuple):
    """A command of Nomad: the command of Wharf that runs instead, or the reason why none does.

    `options` are names without dashes, separated by spaces: `name` is a switch and `name=` takes a value. `name:other`
    is called `other` in Wharf, and `name:on/off` has a switch in Wharf for each of its values. `ignored` are switches that
    only change how much is printed, or that Wharf does not need. `refused` maps options that would act differently to what
    to do instead.
    """

    wharf: str = ""
    options: str = ""
    ignored: str = ""
    refused: Mapping[str, str] = {}
    reason: str = ""
    defaults: str = ""
    """Switches that are on in Nomad unless they are turned off, such as with `-t=false`."""
    without_arguments: str = ""
    """The command of Wharf that runs instead if there are no arguments, only options."""

    @property
    def option_names(self) -> dict[str, str]:
        """The options by their name in Nomad, with the name in Wharf. Both end with `=` if they take a value."""
        pairs = (word.partition(":") for word in f"{self.options} {CONNECTION_OPTIONS}".split())
        return {old: new or old for old, _, new in pairs}


_READ: Final = "json t= verbose"
_NO_TEMPLATE: Final = "json verbose"
_SELF: Final = "name the node; `wharf node status --self` shows the node of this agent"
_NO_VAULT: Final = "Wharf has no integration with Vault; use `wharf var` for secrets"
_NO_CONSUL: Final = "Wharf has no integration with Consul; `wharf service` lists its own services"
_NO_OVERRIDE: Final = "Wharf has no Sentinel policies"
_ALLOC_BY_JOB: Final = "`wharf job allocs JOB` lists the allocations; name one of them"
_BY_OTHER_API: Final = "use `wharf operator api {}`"
_AGENT: Final = (
    "agents of Wharf have other settings: use `wharf agent --config FILE` (documentation page Configuration), or `wharf dev` for a "
    "cluster on this machine"
)
_JOB_SECRETS: Final = {
    "vault-token": _NO_VAULT,
    "vault-namespace": _NO_VAULT,
    "consul-token": _NO_CONSUL,
    "consul-namespace": _NO_CONSUL,
}
_HCL1: Final = {
    "hcl1": "Wharf reads only the current version of HCL; the documentation page The language of job files describes it"
}
_PRICED: Final = "it belongs to Nomad Enterprise, and Wharf has no counterpart"
_JOB_ACL_TEXT: Final = (
    "Wharf's command does not attach policies to jobs: use `wharf operator api -X PUT /v1/acl/policy/NAME BODY` with the "
    "field JobACL"
)
_AUTH_METHOD_FILE: Final = "write the auth method to a file, and use `wharf acl auth-method create FILE`"
_AUTH_METHOD_OPTIONS: Final = dict.fromkeys(
    ("name", "type", "max-token-ttl", "token-locality", "token-name-format", "default", "config"), _AUTH_METHOD_FILE
)

COMMANDS: Final[Mapping[str, NomadCommand]] = {
    "acl bootstrap": NomadCommand("acl bootstrap", _READ),
    "acl policy apply": NomadCommand(
        "acl policy apply",
        "description=",
        refused=dict.fromkeys(("job", "group", "task", "namespace"), _JOB_ACL_TEXT),
    ),
    "acl policy delete": NomadCommand("acl policy delete"),
    "acl policy info": NomadCommand("acl policy info", _READ),
    "acl policy list": NomadCommand("acl policy list", _READ),
    "acl policy self": NomadCommand("acl policy self", _READ),
    "acl token create": NomadCommand(
        "acl token create",
        f"name= type= policy= role-name= ttl= global {_READ}",
        refused={"role-id": "use -role-name with the name of the role"},
    ),
    "acl token delete": NomadCommand("acl token delete"),
    "acl token info": NomadCommand("acl token info", _READ),
    "acl token list": NomadCommand("acl token list", _READ),
    "acl token self": NomadCommand("acl token self", _READ),
    "acl token update": NomadCommand(
        "acl token update",
        f"name= policy= role-name= {_READ}",
        refused={
            "role-id": "use -role-name with the name of the role",
            "type": "the type of a token cannot change: create another token",
            "global": "whether a token is global cannot change: create another token",
        },
    ),
    "acl role create": NomadCommand("acl role create", f"name= description= policy= {_READ}"),
    "acl role delete": NomadCommand("acl role delete"),
    "acl role info": NomadCommand("acl role info", _READ, ignored="by-name"),
    "acl role list": NomadCommand("acl role list", _READ),
    "acl role update": NomadCommand(
        "acl role update",
        f"name= description= policy= {_READ}",
        refused={"no-merge": "options that you leave out keep their values; name all that shall change"},
    ),
    "acl auth-method create": NomadCommand("acl auth-method create", _READ, refused=_AUTH_METHOD_OPTIONS),
    "acl auth-method delete": NomadCommand("acl auth-method delete"),
    "acl auth-method info": NomadCommand("acl auth-method info", _READ),
    "acl auth-method list": NomadCommand("acl auth-method list", _READ),
    "acl auth-method update": NomadCommand("acl auth-method update", _READ, refused=_AUTH_METHOD_OPTIONS),
    "acl binding-rule create": NomadCommand(
        "acl binding-rule create", f"auth-method= bind-type= bind-name= selector= description= {_READ}"
    ),
    "acl binding-rule delete": NomadCommand("acl binding-rule delete"),
    "acl binding-rule info": NomadCommand("acl binding-rule info", _READ),
    "acl binding-rule list": NomadCommand("acl binding-rule list", _READ),
    "acl binding-rule update": NomadCommand(
        "acl binding-rule update", f"bind-type= bind-name= selector= description= {_READ}"
    ),
    "agent": NomadCommand(reason=_AGENT),
    "agent-info": NomadCommand(reason="use `wharf operator api /v1/agent/self`"),
    "check": NomadCommand(reason="use `wharf operator api /v1/agent/health`"),
    "config validate": NomadCommand(
        reason="agents of Wharf have other settings: use `wharf config check FILE` (documentation page Configuration)"
    ),
    "login": NomadCommand(
        "login", f"method= login-token= oidc-callback-addr= {_READ}", refused={"type": "the auth method has the type"}
    ),
    "monitor": NomadCommand(
        "monitor",
        "log-level= log-json node-id= server-id=",
        ignored="log-include-location",
    ),
    "monitor export": NomadCommand(
        reason="read the log files of the agent on its machine (documentation page Log lines)"
    ),
    "ui": NomadCommand("ui", "show-url:no-open", ignored="authenticate"),
    "version": NomadCommand("version"),
    "alloc status": NomadCommand(
        "alloc status",
        _READ,
        ignored="short",
        refused={
            "stats": "`wharf alloc stats ALLOC` shows the use of resources",
            "ui": "`wharf ui ALLOC` opens its page",
        },
    ),
    "alloc logs": NomadCommand(
        "alloc logs",
        "stderr stdout task= f tail n= c=",
        ignored="verbose",
        refused={"job": "use `wharf job logs JOB`, which shows all allocations", "group": "use `wharf job logs JOB`"},
    ),
    "alloc exec": NomadCommand(
        "alloc exec",
        "task= i t",
        defaults="t",
        refused={"job": _ALLOC_BY_JOB, "group": _ALLOC_BY_JOB, "e": "Wharf's terminal has no escape character"},
    ),
    "alloc fs": NomadCommand(
        "alloc fs",
        ignored="verbose",
        refused={
            "job": _ALLOC_BY_JOB,
            "stat": "use `wharf alloc fs stat ALLOC PATH`",
            "H": "sizes have units; `wharf alloc fs ls --json` prints bytes",
            "f": "use `wharf alloc logs -f ALLOC` for logs; `wharf alloc fs cat` prints the file once",
            "tail": "use `wharf alloc fs cat ALLOC PATH | tail`",
            "n": "use `wharf alloc fs cat ALLOC PATH | tail`",
            "c": "use `wharf alloc fs cat ALLOC PATH | tail`",
        },
    ),
    "alloc stop": NomadCommand("alloc stop", "detach no-shutdown-delay", ignored="verbose"),
    "alloc restart": NomadCommand("alloc restart", "task= all-tasks", ignored="verbose"),
    "alloc signal": NomadCommand("alloc signal", "s= task=", ignored="verbose"),
    "alloc checks": NomadCommand("alloc checks", _READ),
    "alloc pause": NomadCommand(reason="nodes do not support this yet"),
    "deployment list": NomadCommand("deployment list", f"filter= {_READ}"),
    "deployment status": NomadCommand("deployment status", f"monitor {_READ}"),
    "deployment promote": NomadCommand("deployment promote", "group= detach", ignored="verbose"),
    "deployment pause": NomadCommand("deployment pause", ignored="verbose"),
    "deployment resume": NomadCommand("deployment resume", ignored="verbose detach"),
    "deployment fail": NomadCommand("deployment fail", "detach", ignored="verbose"),
    "deployment unblock": NomadCommand(
        reason="only jobs of several regions need it, and Wharf does not have such jobs"
    ),
    "eval list": NomadCommand("eval list", f"job= status= filter= per-page= page-token= {_READ}"),
    "eval status": NomadCommand(
        "eval status", _READ, refused={"monitor": "`wharf job run` and `wharf job eval` follow their evaluation"}
    ),
    "eval delete": NomadCommand(reason="garbage collection deletes ended evaluations: use `wharf system gc`"),
    "job run": NomadCommand(
        "job run",
        "detach check-index= eval-priority= hcl2-strict:hcl2-strict= output preserve-counts var= var-file=",
        ignored="verbose json",
        refused={
            **_JOB_SECRETS,
            **_HCL1,
            "policy-override": _NO_OVERRIDE,
            "preserve-resources": "resources come from the job file; write the current ones into it",
            "ui": "`wharf ui JOB` opens its page",
        },
    ),
    "job plan": NomadCommand(
        "job plan",
        "diff:diff/no-diff var= var-file= hcl2-strict:hcl2-strict=",
        ignored="verbose json",
        refused={**_JOB_SECRETS, **_HCL1, "policy-override": _NO_OVERRIDE},
    ),
    "job validate": NomadCommand(
        "job validate", "var= var-file= hcl2-strict:hcl2-strict=", ignored="json", refused={**_JOB_SECRETS, **_HCL1}
    ),
    "job inspect": NomadCommand(
        "job inspect",
        "version= json t=",
        refused={
            "hcl": "use `wharf operator api /v1/job/JOB/submission?version=N`",
            "with-vars": "use `wharf operator api /v1/job/JOB/submission?version=N`",
        },
    ),
    "job status": NomadCommand(
        "job status",
        f"all-allocs filter= {_READ}",
        ignored="short evals",
        refused={"ui": "`wharf ui JOB` opens its page"},
    ),
    "job stop": NomadCommand(
        "job stop",
        "detach purge yes no-shutdown-delay global",
        ignored="verbose",
        refused={"eval-priority": "the evaluation has the priority of the job"},
    ),
    "job start": NomadCommand("job start", "detach", ignored="verbose", refused=_JOB_SECRETS),
    "job restart": NomadCommand(
        "job restart",
        "batch-size= group= task= all-tasks",
        refused={
            "batch-wait": "Wharf restarts the next batch when the tasks of the last one run again",
            "reschedule": "use `wharf alloc stop ALLOC`, which places the allocation again",
            "on-error": "the command ends at the first error",
            "no-shutdown-delay": "`wharf alloc stop --no-shutdown-delay ALLOC` stops one allocation",
        },
        ignored="verbose yes",
    ),
    "job history": NomadCommand(
        "job history",
        f"p version= {_READ}",
        ignored="full",
        refused={
            "diff-tag": "use `wharf job history -p`, which compares each version with the one before",
            "diff-version": "use `wharf job history -p`, which compares each version with the one before",
        },
    ),
    "job revert": NomadCommand("job revert", "detach", ignored="verbose", refused=_JOB_SECRETS),
    "job promote": NomadCommand("job promote", "group= detach", ignored="verbose"),
    "job deployments": NomadCommand(
        "job deployments", f"all {_READ}", refused={"latest": "the first row is the newest deployment"}
    ),
    "job allocs": NomadCommand("job allocs", f"all {_READ}"),
    "job dispatch": NomadCommand(
        "job dispatch",
        "detach meta= id-prefix-template= idempotency-token= priority=",
        ignored="verbose",
        refused={"ui": "`wharf ui JOB` opens its page"},
    ),
    "job eval": NomadCommand("job eval", "force-reschedule detach", ignored="verbose"),
    "job periodic force": NomadCommand("job periodic force", "detach", ignored="verbose"),
    "job scale": NomadCommand(
        "job scale",
        "detach",
        ignored="verbose",
        refused={"check-index": "`wharf job scale` has no such check; `wharf job run --check-index` has it"},
    ),
    "job scaling-events": NomadCommand(reason="use `wharf operator api /v1/job/JOB/scale`"),
    "job init": NomadCommand(
        "job init",
        "short",
        defaults="hcl",
        refused={
            "connect": "Wharf has no service mesh",
            "template": "`wharf job init --help` lists the kinds of examples",
            "list-templates": "`wharf job init --help` lists the kinds of examples",
        },
    ),
    "job action": NomadCommand(
        "job action",
        f"job=:{POSITIONAL} alloc= group= task= i t",
        defaults="t",
        refused={"e": "Wharf's terminal has no escape character"},
    ),
    "job tag apply": NomadCommand("job tag apply", "name= version= description="),
    "job tag unset": NomadCommand("job tag unset", "name="),
    "namespace apply": NomadCommand(
        "namespace apply",
        "description= quota=",
        refused=dict.fromkeys(
            ("default-node-pool", "allowed-node-pools", "denied-node-pools", "json"),
            "write the namespace to a file, and use `wharf namespace apply FILE`",
        ),
    ),
    "namespace delete": NomadCommand("namespace delete"),
    "namespace inspect": NomadCommand("namespace inspect", "t="),
    "namespace list": NomadCommand("namespace list", _READ),
    "namespace status": NomadCommand("namespace status", _READ),
    "node status": NomadCommand(
        "node status",
        f"filter= self stats {_READ}",
        ignored="short os",
        refused={
            "allocs": "`wharf node status NODE` lists the allocations of the node",
            "quiet": "use `wharf node status -t '{{range .}}{{.ID}} {{end}}'`",
            "per-page": "the command prints all nodes; select some with -filter",
            "page-token": "the command prints all nodes; select some with -filter",
            "ui": "`wharf ui NODE` opens its page",
        },
    ),
    "node drain": NomadCommand(
        "node drain",
        "enable disable deadline= force no-deadline ignore-system keep-ineligible m= detach yes",
        refused={
            "self": _SELF,
            "meta": "`wharf node meta apply` sets metadata of a node",
            "monitor": "`wharf node drain` follows the drain that it begins; `wharf node status NODE` shows one",
        },
    ),
    "node eligibility": NomadCommand("node eligibility", "enable disable", refused={"self": _SELF}),
    "node config": NomadCommand(reason="nodes do not support this yet"),
    "node meta apply": NomadCommand("node meta apply", f"unset= node-id=:{POSITIONAL}"),
    "node meta read": NomadCommand("node meta read", f"json t= node-id=:{POSITIONAL}"),
    "node identity get": NomadCommand("node identity get", "json t="),
    "node identity renew": NomadCommand("node identity renew"),
    "node intro create": NomadCommand("node intro create", "node-name= node-pool= ttl= json t="),
    "node pool apply": NomadCommand(
        "node pool apply", refused={"json": "Wharf recognizes the format of the file: leave -json out"}
    ),
    "node pool delete": NomadCommand("node pool delete"),
    "node pool info": NomadCommand("node pool info", "json t="),
    "node pool init": NomadCommand(reason="use `wharf node pool apply NAME`, which needs no file"),
    "node pool jobs": NomadCommand(
        "node pool jobs",
        _READ,
        refused=dict.fromkeys(("filter", "per-page", "page-token"), "the command prints all jobs of the pool"),
    ),
    "node pool list": NomadCommand(
        "node pool list",
        "filter= json t=",
        refused=dict.fromkeys(("per-page", "page-token"), "the command prints all pools; select some with -filter"),
    ),
    "node pool nodes": NomadCommand(
        "node pool nodes",
        _READ,
        refused=dict.fromkeys(("filter", "per-page", "page-token"), "the command prints all nodes of the pool"),
    ),
    "operator api": NomadCommand(
        "operator api",
        "X= H= filter=",
        ignored="verbose",
        refused={"dryrun": "Wharf prints no curl command; `wharf operator api -i` prints status and headers"},
    ),
    "operator autopilot get-config": NomadCommand(reason=_BY_OTHER_API.format("/v1/operator/autopilot/configuration")),
    "operator autopilot set-config": NomadCommand(
        reason=_BY_OTHER_API.format("-X PUT /v1/operator/autopilot/configuration BODY")
    ),
    "operator autopilot health": NomadCommand(reason=_BY_OTHER_API.format("/v1/operator/autopilot/health")),
    "operator client-state": NomadCommand(reason="`wharf operator debug` collects the state of a node"),
    "operator debug": NomadCommand(
        reason="Wharf collects other data: use `wharf operator debug` on the machine of the agent"
    ),
    "operator gossip keyring": NomadCommand(reason="servers of Wharf use no gossip; tls.* secures their connections"),
    "operator metrics": NomadCommand(reason=_BY_OTHER_API.format("/v1/metrics")),
    "operator raft list-peers": NomadCommand("operator members", refused={"stale": "the list is always current"}),
    "operator raft remove-peer": NomadCommand(reason="use `wharf server force-leave SERVER`"),
    "operator raft transfer-leadership": NomadCommand(
        reason=_BY_OTHER_API.format("-X PUT '/v1/operator/raft/transfer-leadership?id=ID'")
    ),
    "operator raft info": NomadCommand(
        reason="servers of Wharf have no Raft log; see the documentation page Architecture"
    ),
    "operator raft logs": NomadCommand(
        reason="servers of Wharf have no Raft log; see the documentation page Architecture"
    ),
    "operator raft state": NomadCommand(
        reason="servers of Wharf have no Raft log; see the documentation page Architecture"
    ),
    "operator root keyring list": NomadCommand("operator keyring list", _NO_TEMPLATE),
    "operator root keyring rotate": NomadCommand(
        "operator keyring rotate",
        "full verbose",
        refused={
            "now": "a rotation takes effect at once: leave -now out",
            "prepublish": "a rotation takes effect at once; Wharf publishes no key in advance",
        },
    ),
    "operator root keyring remove": NomadCommand("operator keyring remove", "force"),
    "operator scheduler get-config": NomadCommand("operator scheduler get-config", "json t="),
    "operator scheduler set-config": NomadCommand(
        "operator scheduler set-config",
        "check-index= memory-oversubscription= pause-eval-broker= preempt-batch-scheduler= preempt-service-scheduler= "
        "preempt-sysbatch-scheduler= preempt-system-scheduler= reject-job-registration= scheduler-algorithm=",
    ),
    "operator snapshot save": NomadCommand("operator snapshot save", "stale"),
    "operator snapshot restore": NomadCommand(
        reason="Wharf cannot read snapshots of Nomad: use `wharf import nomad`; `wharf operator snapshot restore FILE` reads its own"
    ),
    "operator snapshot inspect": NomadCommand(
        "operator snapshot inspect",
        "json",
        refused={
            "t": "use -json",
            **dict.fromkeys(("meta", "kvdetails", "kvdepth", "kvfilter"), "a snapshot of Wharf has other parts"),
        },
    ),
    "operator snapshot state": NomadCommand(
        reason="Wharf cannot read snapshots of Nomad; `wharf operator snapshot inspect FILE` reads its own"
    ),
    "operator utilization": NomadCommand(reason=_PRICED),
    "plugin status": NomadCommand(
        reason="drivers are part of the nodes; `wharf node status NODE` lists the drivers of a node"
    ),
    "quota apply": NomadCommand(
        "quota apply", refused={"json": "Wharf recognizes the format of the file: leave -json out"}
    ),
    "quota delete": NomadCommand("quota delete"),
    "quota init": NomadCommand(reason="the documentation page Quotas shows a file"),
    "quota inspect": NomadCommand("quota inspect", "json t="),
    "quota list": NomadCommand("quota list", "json t="),
    "quota status": NomadCommand("quota status", "json t="),
    "recommendation": NomadCommand(reason=_PRICED),
    "scaling policy info": NomadCommand("scaling policy info", _READ),
    "scaling policy list": NomadCommand("scaling policy list", f"job= type= {_READ}"),
    "sentinel": NomadCommand(reason=_PRICED),
    "license": NomadCommand(reason="no license is needed: all features are free"),
    "server members": NomadCommand("server members", _READ, ignored="detailed"),
    "server join": NomadCommand(
        reason="servers find each other through their store; see the documentation page Three servers"
    ),
    "server force-leave": NomadCommand("server force-leave", "prune"),
    "service list": NomadCommand("service list", "json t="),
    "service info": NomadCommand(
        "service info",
        f"filter= {_READ}",
        refused=dict.fromkeys(("per-page", "page-token"), "the command prints all instances; select some with -filter"),
    ),
    "service delete": NomadCommand("service delete"),
    "setup": NomadCommand(reason="Wharf has no integration with Consul and Vault, so there is nothing to set up"),
    "system gc": NomadCommand("system gc"),
    "system reconcile summaries": NomadCommand("system reconcile summaries"),
    "status": NomadCommand("status", _READ, without_arguments="job status"),
    "tls ca create": NomadCommand(reason="`wharf tls create` creates an authority and certificates in one step"),
    "tls ca info": NomadCommand(reason="use `openssl x509 -text -in FILE`"),
    "tls cert create": NomadCommand(reason="`wharf tls create` creates an authority and certificates in one step"),
    "tls cert info": NomadCommand(reason="use `openssl x509 -text -in FILE`"),
    "var get": NomadCommand(
        "var get",
        "item= t= json",
        refused={
            "out": "use -json, or -t with a template",
            "template": "use -t with a template",
        },
    ),
    "var put": NomadCommand(
        "var put",
        "check-index= force verbose",
        refused={
            "in": "Wharf recognizes the format of a file: use `wharf var put --file FILE PATH`",
            "out": "use -json",
        },
    ),
    "var list": NomadCommand(
        "var list",
        _READ,
        refused={
            "filter": "the command prints all variables below a path",
            "per-page": "the command prints all variables below a path",
            "page-token": "the command prints all variables below a path",
            "out": "use -json, or -t with a template",
            "template": "use -t with a template",
        },
    ),
    "var purge": NomadCommand("var purge", "check-index="),
    "var init": NomadCommand(reason="the documentation page Variables shows a file"),
    "var lock": NomadCommand(
        "var lock",
        "ttl= delay=",
        ignored="verbose",
        refused={
            "max-retry": "the command tries as long as it waits for the lock",
            "shell": "name a shell as the program, such as `wharf var lock PATH sh -c COMMAND`",
        },
    ),
    "volume create": NomadCommand("volume create", "detach", refused={"id": "volumes have an id from the server"}),
    "volume register": NomadCommand("volume register", "detach", refused={"id": "volumes have an id from the server"}),
    "volume delete": NomadCommand(
        "volume delete", refused={"secret": "volumes need no secret", "type": "all volumes are host volumes"}
    ),
    "volume status": NomadCommand(
        "volume status",
        f"node= node-pool= filter= {_READ}",
        ignored="short stats",
        refused={"type": "all volumes are host volumes", "plugin_id": "Wharf has no CSI plugins"},
    ),
    "volume init": NomadCommand("volume init", refused={"type": "all volumes are host volumes"}),
    "volume deregister": NomadCommand(reason="Wharf has no CSI plugins; `wharf volume delete` deletes a host volume"),
    "volume detach": NomadCommand(reason="Wharf has no CSI plugins, and nothing attaches host volumes"),
    "volume snapshot": NomadCommand(reason="Wharf has no CSI plugins, which make snapshots"),
    "volume claim": NomadCommand(reason="`wharf volume status VOLUME` shows which allocations use a volume"),
    "fmt": NomadCommand(
        "job fmt",
        "check",
        refused={
            "list": "the command names the files that it changes",
            "write": "use -check to change nothing",
            "recursive": "name the files, such as jobs/*.hcl",
        },
    ),
    "windows service": NomadCommand(reason="agents of Wharf run on Linux"),
}
"""The commands by their name in Nomad. A name of a group stands for all of its commands."""

ALIASES: Final[Mapping[str, str]] = {
    "run": "job run", "plan": "job plan", "stop": "job stop", "start": "job start", "validate": "job validate",
    "inspect": "job inspect", "init": "job init", "action": "job action", "logs": "alloc logs", "fs": "alloc fs",
    "exec": "alloc exec", "node-status": "node status", "node-drain": "node drain", "alloc-status": "alloc status",
    "eval-status": "eval status", "server-members": "server members", "server-join": "server join",
    "server-force-leave": "server force-leave", "client-config": "node config", "debug": "operator debug",
    "keyring": "operator gossip keyring", "operator keyring": "operator gossip keyring",
    "root keyring list": "operator root keyring list", "root keyring rotate": "operator root keyring rotate",
    "root keyring remove": "operator root keyring remove",
}  # fmt: skip
"""Further names of Nomad's commands."""

REMOTE_COMMANDS: Final = frozenset({"alloc exec", "var lock"})
"""Commands whose arguments after the first one belong to another program."""
