"""The etcd engine: several servers share one log in etcd."""
