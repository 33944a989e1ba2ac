"""The one-command tour: raw text in, a model that explains and changes its own words out."""

from vitrail.demo.plan import DemoPlan, plan_demo
from vitrail.demo.tour import run_tour

__all__ = ["DemoPlan", "plan_demo", "run_tour"]
