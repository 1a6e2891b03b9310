"""All that can be asked, by noun: the same attributes on both clients."""

from typing import Generic

from wharf.client.methods import M
from wharf.client.nouns import access, agents, jobs, machines, tenants, work


class Nouns(Generic[M]):
    def __init__(self, client: M) -> None:
        self.jobs = jobs.Jobs(client)
        self.evaluations = work.Evaluations(client)
        self.allocations = work.Allocations(client)
        self.deployments = work.Deployments(client)
        self.services = work.Services(client)
        self.scaling = work.Scaling(client)
        self.search = work.Search(client)
        self.nodes = machines.Nodes(client)
        self.node_agents = machines.NodeAgents(client)
        self.node_pools = machines.NodePools(client)
        self.host_volumes = machines.HostVolumes(client)
        self.files = machines.Files(client)
        self.namespaces = tenants.Namespaces(client)
        self.quotas = tenants.Quotas(client)
        self.variables = tenants.Variables(client)
        self.acl = access.AccessControl(client)
        self.identities = access.Identities(client)
        self.keyring = access.Keyring(client)
        self.agent = agents.Agent(client)
        self.status = agents.Status(client)
        self.operator = agents.Operator(client)
        self.system = agents.System(client)
        self.events = agents.Events(client)
        self.metrics = agents.Metrics(client)
        self.regions = agents.Regions(client)
        self.documents = agents.Documents(client)


__all__ = ["Nouns"]
