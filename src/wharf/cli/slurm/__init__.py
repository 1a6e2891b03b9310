"""Commands for users of Slurm: `sbatch`, `squeue`, `scancel` and `sacct`, with Slurm's options and columns.

`option_parser` reads options, `directives` the `#SBATCH` lines of a script, and `translation` turns both into a job.
Decision 301 says what is translated, what has no effect, and what is refused.
"""
