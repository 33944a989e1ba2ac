"""Generation: block-by-block sampling with an exact cache, and the trace that explains it (§5.2)."""

from vitrail.generate.batch import Batch
from vitrail.generate.requests import OnCommit, Request
from vitrail.generate.sampler import generate, require_cdlm
from vitrail.generate.sampling import Sampling, stop_ids
from vitrail.generate.trace import Commit, Trace

__all__ = ["Batch", "Commit", "OnCommit", "Request", "Sampling", "Trace", "generate", "require_cdlm", "stop_ids"]
