"""The etcd engine: several servers share one log in etcd."""

from wharf.world import quiet_grpc as quiet_grpc  # Before the modules of this package import gRPC.
