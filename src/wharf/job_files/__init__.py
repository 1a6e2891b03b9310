"""Job files: converts the text that users write into the JSON of a job, as the API accepts it.

Knows no cluster, and reads no files, clocks or environment: the caller passes text, values and ports. Whether a job is valid
is decided by `wharf.contract.model.jobs.validation`, when the job is submitted.
"""
