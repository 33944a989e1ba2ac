"""Generation: block-by-block sampling with an exact cache, and the trace that explains it (§5.2)."""

from vitrail.generate.requests import OnCommit
from vitrail.generate.sampler import generate
from vitrail.generate.sampling import Sampling
from vitrail.generate.trace import Commit, Trace

__all__ = ["Commit", "OnCommit", "Sampling", "Trace", "generate"]
