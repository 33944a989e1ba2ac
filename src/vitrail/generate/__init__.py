"""Generation: seeded sampling with an exact cache, and the trace that explains it (§5.2)."""

from vitrail.generate.batch import Batch
from vitrail.generate.beginning import Beginning, Gain
from vitrail.generate.requests import Ending, OnCommit, Request, whole_ids
from vitrail.generate.sampler import batch_for, generate, run
from vitrail.generate.sampling import Sampling, stop_ids
from vitrail.generate.trace import Commit, Trace

__all__ = [
    "Batch",
    "Beginning",
    "Commit",
    "Ending",
    "Gain",
    "OnCommit",
    "Request",
    "Sampling",
    "Trace",
    "batch_for",
    "generate",
    "run",
    "stop_ids",
    "whole_ids",
]
