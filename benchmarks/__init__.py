"""Benchmarks. Each measures Wharf against a baseline in the same run. `python -m benchmarks` runs all of them."""
