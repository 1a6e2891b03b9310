"""Records of allocations: the allocation, its resources, metrics and task states."""
