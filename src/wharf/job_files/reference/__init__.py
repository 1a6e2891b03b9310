"""The reference of job files: their JSON Schema and the pages in `docs/job-file`, generated from the model and its docstrings.

`python -m wharf.job_files.reference` writes all of them. Nothing here runs in a command or a server: they read the generated
schema with `wharf.job_files.schema`.
"""
