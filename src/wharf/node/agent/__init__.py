"""The node's agent: it speaks with servers, drives the core, and has drivers and the supervisor do what the core says."""
