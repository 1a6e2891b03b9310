"""Batch work without a job file: builds the job of a script or command, submits it, and maps Python functions over items.

Pure parts: `array_indexes`, `amounts` and `job_builder`. `submission` and `functions` call servers.
"""
