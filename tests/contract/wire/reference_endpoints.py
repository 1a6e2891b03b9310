"""The endpoint tables of the reference: method and path; `*` stands for one path segment, `**` for a name with slashes.

Taken from the pages on conventions, jobs, nodes and allocations, and scheduling. A write is listed as PUT; if POST works too, the
router's test covers it.
"""

AGENT = """
GET agent/self | GET agent/members | GET agent/servers | PUT agent/servers | PUT agent/join | PUT agent/force-leave
GET agent/health | GET agent/host | PUT agent/reload | GET agent/monitor | GET agent/monitor/export
GET agent/pprof/cmdline | GET agent/pprof/profile | GET agent/pprof/trace | GET agent/pprof/*
GET agent/schedulers | GET agent/schedulers/config | PUT agent/schedulers/config
GET agent/keyring/list | PUT agent/keyring/*
GET status/leader | GET status/peers | GET regions | GET metrics | PUT system/gc | PUT system/reconcile/summaries
PUT search | PUT search/fuzzy | GET event/stream
"""

OPERATOR = """
GET operator/raft/configuration | DELETE operator/raft/peer | PUT operator/raft/transfer-leadership
GET operator/autopilot/configuration | PUT operator/autopilot/configuration | GET operator/autopilot/health
GET operator/snapshot | PUT operator/snapshot | GET operator/scheduler/configuration
PUT operator/scheduler/configuration | GET operator/keyring/keys | PUT operator/keyring/rotate
DELETE operator/keyring/key/* | GET operator/upgrade-check/vault-workload-identity
GET operator/license | PUT operator/license | PUT operator/utilization
"""

ACCESS = """
PUT acl/bootstrap | GET acl/policies | GET acl/policy/self | GET acl/policy/** | PUT acl/policy/** | DELETE acl/policy/**
GET acl/tokens | PUT acl/token | GET acl/token/self | GET acl/token/* | PUT acl/token/* | DELETE acl/token/*
PUT acl/token/onetime | PUT acl/token/onetime/exchange | GET acl/roles | PUT acl/role | GET acl/role/* | PUT acl/role/*
DELETE acl/role/* | GET acl/role/name/* | GET acl/auth-methods | PUT acl/auth-method | GET acl/auth-method/*
PUT acl/auth-method/* | DELETE acl/auth-method/* | GET acl/binding-rules | PUT acl/binding-rule | GET acl/binding-rule/*
PUT acl/binding-rule/* | DELETE acl/binding-rule/* | PUT acl/oidc/auth-url | PUT acl/oidc/complete-auth | PUT acl/login
PUT acl/identity/client-introduction-token
"""

NAMESPACES = """
GET namespaces | PUT namespace | GET namespace/** | PUT namespace/** | DELETE namespace/**
GET quotas | PUT quota | GET quota/* | PUT quota/* | DELETE quota/* | GET quota-usages | GET quota/usage/*
GET sentinel/policies | GET recommendations
GET vars | GET var/** | PUT var/** | DELETE var/**
"""

JOBS = """
GET jobs | PUT jobs | PUT jobs/parse | PUT validate/job | GET jobs/statuses | POST jobs/statuses
GET job/** | PUT job/** | DELETE job/** | PUT job/**/plan | PUT job/**/evaluate | GET job/**/versions
PUT job/**/versions/*/tag | DELETE job/**/versions/*/tag | PUT job/**/revert | PUT job/**/stable
GET job/**/allocations | GET job/**/evaluations | GET job/**/deployments | GET job/**/deployment | GET job/**/summary
PUT job/**/periodic/force | PUT job/**/dispatch | PUT job/**/dispatch/payload | GET job/**/scale | PUT job/**/scale
GET job/**/services | GET job/**/actions | GET job/**/action | GET job/**/submission
"""

EVALUATIONS_AND_ALLOCATIONS = """
GET evaluations | DELETE evaluations | GET evaluations/count | GET evaluation/* | GET evaluation/*/allocations
GET allocations | GET allocation/* | PUT allocation/*/stop | GET allocation/*/services | GET allocation/*/checks
GET deployments | GET deployment/* | GET deployment/allocations/* | PUT deployment/fail/* | PUT deployment/pause/*
PUT deployment/promote/* | PUT deployment/unblock/* | PUT deployment/allocation-health/*
GET services | GET service/* | DELETE service/*/* | GET scaling/policies | GET scaling/policy/*
"""

NODES = """
GET nodes | GET node/* | GET node/*/allocations | PUT node/*/drain | PUT node/*/eligibility | PUT node/*/evaluate
PUT node/*/purge | GET node/pools | PUT node/pools | GET node/pool/** | PUT node/pool/** | DELETE node/pool/**
GET node/pool/**/nodes | GET node/pool/**/jobs
GET volumes | GET volume/host/* | DELETE volume/host/* | PUT volume/host/create | PUT volume/host/register
GET volume/csi/* | GET plugins | GET plugin/csi/*
"""

CLIENT = """
GET client/metadata | POST client/metadata | GET client/stats | GET client/gc | PUT client/gc | GET client/identity
PUT client/identity/renew
PUT client/allocation/*/restart | PUT client/allocation/*/signal | GET client/allocation/*/pause
PUT client/allocation/*/pause | GET client/allocation/*/stats | GET client/allocation/*/checks
GET client/allocation/*/exec | GET client/allocation/*/snapshot | GET client/allocation/*/gc
PUT client/allocation/*/gc
GET client/fs/ls/* | GET client/fs/stat/* | GET client/fs/readat/* | GET client/fs/cat/* | GET client/fs/stream/*
GET client/fs/logs/*
"""

ALL = (AGENT, OPERATOR, ACCESS, NAMESPACES, JOBS, EVALUATIONS_AND_ALLOCATIONS, NODES, CLIENT)

OUTSIDE_OF_V1 = {("GET", "/.well-known/jwks.json"), ("GET", "/.well-known/openid-configuration")}


def list_rows() -> set[tuple[str, str]]:
    """Return (method, path) of every row."""
    found = set(OUTSIDE_OF_V1)
    for group in ALL:
        for row in group.replace("\n", "|").split("|"):
            if row.strip():
                method, path = row.split()
                found.add((method, f"/v1/{path}"))
    return found
