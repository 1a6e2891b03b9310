"""How the leader's brain answers what is asked of it: one module for each noun, joined here.

Each module declares its subjects with their forms, and a class that decides by one operation and commits as the leader
(`Brain.decide`). No rule of the domain stands here.
"""

from wharf.server import whereabouts
from wharf.server.answering import (
    access,
    allocations,
    deployments,
    evaluations,
    forethought,
    jobs,
    keyring,
    nodes,
    servers,
    system,
    variables,
)
from wharf.server.brain import Brain
from wharf.server.sideline import Sideline
from wharf.server.subject import AnsweredBy

__all__ = ["AnsweredBy", "answers_of"]


def answers_of(brain: Brain, sideline: Sideline) -> tuple[AnsweredBy, ...]:
    """Every subject with the method that answers it."""
    return (
        *servers.answers_of(brain),
        *deployments.answers_of(brain),
        *allocations.answers_of(brain),
        *evaluations.answers_of(brain),
        *jobs.answers_of(brain),
        *nodes.answers_of(brain),
        *system.answers_of(brain),
        *access.answers_of(brain),
        *keyring.answers_of(brain),
        *variables.answers_of(brain),
        *forethought.answers_of(brain, sideline),
        *whereabouts.answers_of(),
    )
