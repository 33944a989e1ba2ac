"""The one-command tour: raw text in, a model that explains and changes its own words out."""

from vitrail.demo.plan import DemoPlan, plan_demo
from vitrail.demo.spoken import closing_text
from vitrail.demo.tour import run_tour

__all__ = ["DemoPlan", "closing_text", "plan_demo", "run_tour"]
