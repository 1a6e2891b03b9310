"""Explain in sentences why jobs, evaluations and allocations are in their current state."""
