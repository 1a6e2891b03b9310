"""Commands about allocations: `wharf alloc …`."""
