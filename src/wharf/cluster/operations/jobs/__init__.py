"""Operations on jobs: registration, versions, children, scaling, purge, dry runs and summaries."""
