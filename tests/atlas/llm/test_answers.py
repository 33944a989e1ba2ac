"""Verdicts: any reply has one, and none raises."""

import json

from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from vitrail.atlas.concepts.llm_cards import ConceptAnswer
from vitrail.atlas.judge.raters import RelevanceAnswer
from vitrail.atlas.llm import Reply, Verdict, schema_of, verdict_of
from vitrail.atlas.tags.endpoint import ManyTags

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.sampled_from(["tags", "passages"]), inner),
    max_leaves=9,
)


class Tags(BaseModel):
    tags: list[str]


@given(
    text=st.text() | JSON.map(json.dumps), finish=st.sampled_from(["stop", "length", ""]), refusal=st.text(max_size=2)
)
def test_any_reply_has_a_verdict(text: str, finish: str, refusal: str) -> None:
    verdict, answer = verdict_of(Reply(text, finish, refusal, 0, 0), Tags)
    assert (answer is not None) == (verdict is Verdict.answered)
    assert not refusal or verdict is Verdict.refused


@given(tags=st.lists(st.text(), min_size=1), before=st.sampled_from(["", "```json\n", "Here: ", "<think>{}</think>"]))
def test_right_answer_is_taken_whatever_stands_before_it(tags: list[str], before: str) -> None:
    verdict, answer = verdict_of(Reply(before + json.dumps({"tags": tags}), "stop", "", 0, 0), Tags)
    assert verdict is Verdict.answered
    assert answer == Tags(tags=tags)


@given(rating=st.integers() | st.floats() | st.text())
def test_ratings_off_the_scale_are_malformed(rating: object) -> None:
    reply = Reply(json.dumps({"relevance": rating}), "stop", "", 0, 0)
    verdict, answer = verdict_of(reply, RelevanceAnswer)
    assert answer is None or answer.relevance in (1, 2, 3, 4, 5)
    assert (verdict is Verdict.answered) == (answer is not None)


def test_schemas_are_closed_and_plain() -> None:
    """What strict servers ask for: every object closed, every field required; no lengths, ranges or titles."""
    assert schema_of(ManyTags) == {
        "$defs": {
            "NumberedTags": {
                "type": "object",
                "properties": {
                    "number": {"type": "integer"},
                    "tags": {"type": "array", "items": {"type": "string"}},
                },
                "required": ["number", "tags"],
                "additionalProperties": False,
            }
        },
        "type": "object",
        "properties": {"passages": {"type": "array", "items": {"$ref": "#/$defs/NumberedTags"}}},
        "required": ["passages"],
        "additionalProperties": False,
    }
    kinds = ["content", "tone", "demographic", "alignment"]
    assert schema_of(ConceptAnswer)["properties"] == {
        "name": {"type": "string"},
        "description": {"type": "string"},
        "kind": {"type": "string", "enum": kinds},
    }
