"""Judges: does this text carry that concept, and how well does a label fit its chunk?"""

from vitrail.atlas.judge.windows import BagOfWords, Judge, KeywordScore, balanced_thresholds, windows_of

__all__ = ["BagOfWords", "Judge", "KeywordScore", "balanced_thresholds", "windows_of"]
