"""The memory engine: a simulated log for tests and simulations, with faults."""
