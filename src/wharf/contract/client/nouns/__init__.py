"""The method groups of both clients: one attribute for each noun, such as `client.jobs`."""

from typing import Generic

from wharf.contract.client.methods import M
from wharf.contract.client.nouns import (
    acl,
    agents,
    allocations,
    deployments,
    evaluations,
    events,
    flows,
    identities,
    jobs,
    keyring,
    limits,
    namespaces,
    node_pools,
    nodes,
    operator,
    quotas,
    scaling,
    search,
    services,
    usage,
    variables,
    volumes,
)


class ClientMethods(Generic[M]):
    """All method groups of a client."""

    def __init__(self, client: M) -> None:
        self.jobs = jobs.JobMethods(client)
        self.flows = flows.FlowMethods(client)
        self.evaluations = evaluations.EvaluationMethods(client)
        self.allocations = allocations.AllocationMethods(client)
        self.deployments = deployments.DeploymentMethods(client)
        self.services = services.ServiceMethods(client)
        self.scaling = scaling.ScalingMethods(client)
        self.search = search.SearchMethods(client)
        self.nodes = nodes.NodeMethods(client)
        self.limits = limits.LimitMethods(client)
        self.node_agents = nodes.NodeProtocolMethods(client)
        self.node_pools = node_pools.NodePoolMethods(client)
        self.host_volumes = volumes.VolumeMethods(client)
        self.files = allocations.FileMethods(client)
        self.namespaces = namespaces.NamespaceMethods(client)
        self.quotas = quotas.QuotaMethods(client)
        self.variables = variables.VariableMethods(client)
        self.acl = acl.AclMethods(client)
        self.identities = identities.IdentityMethods(client)
        self.keyring = keyring.KeyringMethods(client)
        self.agent = agents.AgentMethods(client)
        self.status = agents.StatusMethods(client)
        self.operator = operator.OperatorMethods(client)
        self.system = operator.SystemMethods(client)
        self.events = events.EventMethods(client)
        self.usage = usage.UsageMethods(client)
        self.metrics = agents.MetricMethods(client)
        self.regions = agents.RegionMethods(client)
        self.documents = agents.DocumentMethods(client)


__all__ = ["ClientMethods"]
