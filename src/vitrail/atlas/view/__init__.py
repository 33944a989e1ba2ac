"""Seeing an atlas: one concept, search, frequencies compared, the static page."""

from vitrail.atlas.view.comparing import Comparison, Difference, compare_corpora, compare_groups
from vitrail.atlas.view.gather import PageSettings
from vitrail.atlas.view.page import write_page
from vitrail.atlas.view.showing import Shown, plain_card, search_meaning, show_concept

__all__ = [
    "Comparison",
    "Difference",
    "PageSettings",
    "Shown",
    "compare_corpora",
    "compare_groups",
    "plain_card",
    "search_meaning",
    "show_concept",
    "write_page",
]
