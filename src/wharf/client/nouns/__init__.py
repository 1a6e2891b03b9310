"""All that can be asked, by noun: the same attributes on both clients."""

from typing import Generic

from wharf.client.methods import M
from wharf.client.nouns import access, agents, jobs, machines, tenants, work


class Nouns(Generic[M]):
    def __init__(self, client: M) -> None:
        self.jobs: jobs.Jobs[M] = jobs.Jobs(client)
        self.evaluations: work.Evaluations[M] = work.Evaluations(client)
        self.allocations: work.Allocations[M] = work.Allocations(client)
        self.deployments: work.Deployments[M] = work.Deployments(client)
        self.services: work.Services[M] = work.Services(client)
        self.scaling: work.Scaling[M] = work.Scaling(client)
        self.search: work.Search[M] = work.Search(client)
        self.nodes: machines.Nodes[M] = machines.Nodes(client)
        self.node_agents: machines.NodeAgents[M] = machines.NodeAgents(client)
        self.node_pools: machines.NodePools[M] = machines.NodePools(client)
        self.host_volumes: machines.HostVolumes[M] = machines.HostVolumes(client)
        self.files: machines.Files[M] = machines.Files(client)
        self.namespaces: tenants.Namespaces[M] = tenants.Namespaces(client)
        self.quotas: tenants.Quotas[M] = tenants.Quotas(client)
        self.variables: tenants.Variables[M] = tenants.Variables(client)
        self.acl: access.AccessControl[M] = access.AccessControl(client)
        self.identities: access.Identities[M] = access.Identities(client)
        self.keyring: access.Keyring[M] = access.Keyring(client)
        self.agent: agents.Agent[M] = agents.Agent(client)
        self.status: agents.Status[M] = agents.Status(client)
        self.operator: agents.Operator[M] = agents.Operator(client)
        self.system: agents.System[M] = agents.System(client)
        self.events: agents.Events[M] = agents.Events(client)
        self.metrics: agents.Metrics[M] = agents.Metrics(client)
        self.regions: agents.Regions[M] = agents.Regions(client)
        self.documents: agents.Documents[M] = agents.Documents(client)


__all__ = ["Nouns"]
