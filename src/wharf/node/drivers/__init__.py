"""Drivers: the ways to run a task. Each is an adapter of the small protocol in `port`; none of them decides."""
