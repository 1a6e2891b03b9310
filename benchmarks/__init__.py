"""What is measured, each against a baseline in the same run. `python -m benchmarks` runs all."""
