"""Workload identities of tasks: their tokens, and a socket through which tasks reach the API."""
