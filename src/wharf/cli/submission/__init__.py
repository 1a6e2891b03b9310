"""Submission of batch work without a job file: `wharf submit`, and what `wharf sbatch` shares with it."""
