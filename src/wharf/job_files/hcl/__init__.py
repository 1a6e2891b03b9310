"""Job files in HCL. `blocks` is the table of all blocks and arguments; `parse_hcl_job` of `parsing` converts a file by it.

job = parse_hcl_job(text, "web.hcl", VariableInputs(), FunctionPorts(random))      # raises DocumentErrors
job.document["TaskGroups"][0]["Count"]
job.find_place("TaskGroups[0].Count")                                              # web.hcl:4:13
"""
