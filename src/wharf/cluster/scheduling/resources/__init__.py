"""Resources: what nodes have, what allocations use, and the assignment of ports, cores and devices."""
