"""Records of jobs: the job, its groups and tasks, their policies, validation and differences."""
