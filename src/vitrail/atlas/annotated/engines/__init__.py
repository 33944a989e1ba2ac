"""Engines: who runs the tasks of the annotation pipeline: processes here, a Ray cluster, a Slurm cluster."""

from vitrail.atlas.annotated.engines.job import Engine, Job, Step
from vitrail.atlas.annotated.engines.local import LocalEngine
from vitrail.atlas.annotated.engines.ray import RayEngine
from vitrail.atlas.annotated.engines.slurm import SlurmEngine

__all__ = ["Engine", "Job", "LocalEngine", "RayEngine", "SlurmEngine", "Step"]
