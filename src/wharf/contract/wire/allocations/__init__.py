"""Messages and endpoints about allocations."""
