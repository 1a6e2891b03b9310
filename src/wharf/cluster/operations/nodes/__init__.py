"""Operations on nodes: registration, status, reports, drains and evaluations of affected jobs."""
