"""A language model behind any OpenAI-compatible server: asked at once, within limits, and never twice."""

from vitrail.atlas.llm.answers import Verdict, schema_of, verdict_of
from vitrail.atlas.llm.asking import Asker, Messages, Tally
from vitrail.atlas.llm.client import Client, Rejected, Unanswered
from vitrail.atlas.llm.endpoint import Endpoint, LanguageModel, RatingModel, TaggingModel
from vitrail.atlas.llm.estimate import Asked, Estimate, estimate
from vitrail.atlas.llm.journal import ANSWERS_NAME, Journal, Reply, key_of
from vitrail.atlas.llm.prompts import PLACEHOLDERS, Prompt, builtin_text, load_prompts, parse_prompt

__all__ = [
    "ANSWERS_NAME",
    "PLACEHOLDERS",
    "Asked",
    "Asker",
    "Client",
    "Endpoint",
    "Estimate",
    "Journal",
    "LanguageModel",
    "Messages",
    "Prompt",
    "RatingModel",
    "Rejected",
    "Reply",
    "TaggingModel",
    "Tally",
    "Unanswered",
    "Verdict",
    "builtin_text",
    "estimate",
    "key_of",
    "load_prompts",
    "parse_prompt",
    "schema_of",
    "verdict_of",
]
