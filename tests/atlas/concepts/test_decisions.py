"""Decisions: read, refused, applied to drafts."""

import math
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jaxtyping import Float32

from vitrail.atlas.concepts.applying import Draft, apply
from vitrail.atlas.concepts.decisions import Decisions, load_decisions, parse_decisions
from vitrail.atlas.concepts.own import OwnConcept
from vitrail.errors import ConceptNotFound, ConfigError, VitrailError

RIVERS = Draft(("river", "rivers", "stream", "delta", "bank"), "river, stream")
MONEY = Draft(("bank", "loan", "credit", "interest", "mortgage"), "bank, loan", "Money that is lent.")
ENGINES = Draft(("engine", "piston", "diesel"), "engine")
DRAFTS = (RIVERS, MONEY, ENGINES)
SARCASM = OwnConcept(name="sarcastic tone", kind="tone")


def vectors(tags: Sequence[str]) -> Float32[np.ndarray, "n 2"]:
    """Tags on a circle, by their first letter: close letters are close tags."""
    angle = np.array([(ord(tag[0]) - ord("a")) * math.pi / 26 for tag in tags])
    return np.stack([np.cos(angle), np.sin(angle)], 1).astype(np.float32)


def decided(*entries: object, drafts: Sequence[Draft] = DRAFTS, own: Sequence[OwnConcept] = ()) -> tuple[Draft, ...]:
    return apply(parse_decisions({"decisions": list(entries)}, "file"), drafts, vectors, own).drafts


def test_no_decisions_change_nothing() -> None:
    result = apply(Decisions(), DRAFTS, vectors, [SARCASM])
    assert (result.drafts, result.own) == (DRAFTS, (SARCASM,))


def test_rename_changes_what_is_set_and_nothing_else() -> None:
    entry = {"action": "rename", "concept": "Bank,  Loan", "name": "lending", "kind": "alignment"}
    river, money, engine = decided(entry)
    assert (river, engine) == (RIVERS, ENGINES)
    assert money == Draft(MONEY.members, "lending", MONEY.description, "alignment", is_automatic=False)


def test_a_new_description_leaves_an_automatic_name_automatic() -> None:
    (draft,) = decided({"action": "rename", "concept": "engine", "description": "Motors."}, drafts=[ENGINES])
    assert draft == Draft(ENGINES.members, "engine", "Motors.", is_automatic=True)


def test_a_concept_that_a_rebuild_named_otherwise_is_found_by_its_tags() -> None:
    """The name now belongs to another concept; the tags say which one was meant."""
    anchor = {"name": "engine", "tags": ["credit", "loan", "interest", "sold"]}
    _, money, engine = decided({"action": "rename", "concept": anchor, "name": "lending"})
    assert (money.name, engine.name) == ("lending", "engine")


def test_tags_are_compared_without_case_width_and_blanks() -> None:
    anchor = {"name": "gone", "tags": ["ＤＩＥＳＥＬ", " Piston "]}
    assert decided({"action": "rename", "concept": anchor, "name": "motors"})[2].name == "motors"


def test_a_later_entry_calls_a_concept_by_its_new_name() -> None:
    first = {"action": "rename", "concept": "engine", "name": "motors"}
    second = {"action": "merge", "concepts": ["motors", "river, stream"], "name": "power and water"}
    merged, money = decided(first, second)
    assert (money.name, merged.name) == (MONEY.name, "power and water")
    assert merged.members == (*ENGINES.members, *RIVERS.members)


def test_merge_holds_every_tag_once() -> None:
    merged, engine = decided({"action": "merge", "concepts": ["river, stream", "bank, loan"], "name": "banks"})
    assert (engine, merged.is_automatic, merged.description) == (ENGINES, False, None)
    assert merged.members == ("river", "rivers", "stream", "delta", "bank", "loan", "credit", "interest", "mortgage")


def test_split_by_listed_tags_gives_the_others_to_the_closest_part() -> None:
    """Of the tags in no list "credit" is near "bank", "mortgage" near "loan", "interest" nearer to "loan"."""
    parts = [{"name": "shores", "tags": ["bank", "sand"]}, {"name": "lending", "tags": ["loan"]}]
    _, shores, lending, _ = decided({"action": "split", "concept": "bank, loan", "parts": parts})
    assert (shores.members, lending.members) == (("bank", "credit"), ("loan", "interest", "mortgage"))
    assert (shores.description, shores.is_automatic) == (None, False)


@given(st.permutations(["ant", "asp", "auk", "moth", "mole", "zebra"]), st.integers(2, 6))
def test_split_into_k_parts_is_a_partition_whatever_the_order_of_tags(members: list[str], k: int) -> None:
    entry = {"action": "split", "concept": "animals", "into": k}
    parts = decided(entry, drafts=[Draft(tuple(members), "animals")])
    assert len(parts) == k
    assert sorted(tag for part in parts for tag in part.members) == sorted(members)
    assert parts == decided(entry, drafts=[Draft(tuple(sorted(members)), "animals")])
    if k == 3:
        assert {part.members for part in parts} == {("ant", "asp", "auk"), ("mole", "moth"), ("zebra",)}
    assert all(part.name.startswith("animals: ") and part.is_automatic for part in parts)


def test_forbid_takes_away_and_is_fulfilled_where_nothing_is_found() -> None:
    anchor = {"name": "some name", "tags": ["engine", "piston"]}
    assert decided({"action": "forbid", "concept": anchor}) == (RIVERS, MONEY)
    assert decided({"action": "forbid", "concept": "nothing of the kind"}) == DRAFTS


def test_own_concepts_can_be_added_renamed_and_forbidden() -> None:
    entries = [
        {"action": "add", "concept": {"name": "beekeeping", "phrases": ["hive"], "examples": ["A hive."]}},
        {"action": "rename", "concept": "Sarcastic tone", "name": "mockery", "description": "Says the opposite."},
        {"action": "forbid", "concept": "urgent tone"},
    ]
    own = [OwnConcept(name="urgent tone", kind="tone"), SARCASM]
    result = apply(parse_decisions({"decisions": entries}, "file"), DRAFTS, vectors, own)
    assert result.drafts == DRAFTS
    assert result.own == (
        OwnConcept(name="mockery", kind="tone", description="Says the opposite."),
        OwnConcept(name="beekeeping", phrases=("hive",), examples=("A hive.",)),
    )


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"action": "add", "concept": {"name": "new", "examples": ["one", " "]}}, "must not be blank"),
        ({"action": "add", "concept": {"name": "new", "description": "\ud83d\ude00"}}, "half of a pair of surrogates"),
        ({"action": "rename", "concept": "engine", "name": "a\ud800"}, "write the sign itself instead of its escape"),
        ({"action": "rename", "concept": "engine", "name": "a\x07"}, "one line, without control characters"),
        ({"action": "merge", "concepts": ["engine", "bank, loan"], "name": "a\u2028b"}, "without control characters"),
    ],
)
def test_a_name_or_text_that_can_be_none_is_refused(entry: object, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        parse_decisions({"decisions": [entry]}, "file")


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (
            {"action": "rename", "concept": {"name": "engines", "tags": ["rotor"]}, "name": "x"},
            "decision 1 (rename 'engines'): no concept is called 'engines' and none holds half of its tags; "
            "did you mean 'engine'?; correct the entry's name and tags, or remove the entry",
        ),
        (
            {"action": "rename", "concept": "enginge", "name": "x"},
            "decision 1 (rename 'enginge'): no concept is called 'enginge'; did you mean 'engine'?; correct",
        ),
        (
            {"action": "rename", "concept": {"name": "x", "tags": ["bank"]}, "name": "y"},
            "fits 'river, stream' as well as 'bank, loan'; list more tags of the concept that is meant",
        ),
        (
            {"action": "rename", "concept": {"name": "engine", "tags": ["loan", "credit", "rate", "x", "y"]}},
            "changes nothing; give a new name, a description or a kind",
        ),
        (
            {"action": "rename", "concept": "engine", "name": "RIVER, stream"},
            "another concept is called 'RIVER, stream' already; choose another name, or merge the two",
        ),
        (
            {"action": "merge", "concepts": ["engine", {"name": "motor", "tags": ["piston"]}], "name": "x"},
            "'engine' and another of its concepts are one already, 'engine'; rename that one instead",
        ),
        (
            {"action": "split", "concept": "engine", "into": 4},
            "decision 1 (split 'engine'): 3 tags do not make 4 parts; ask for fewer",
        ),
        (
            {
                "action": "split",
                "concept": "engine",
                "parts": [{"name": "a", "tags": ["diesels"]}, {"name": "b", "tags": ["piston"]}],
            },
            "none of the tags of part 'a' is a tag of the concept ('diesels'; did you mean 'diesel'?); "
            "correct the tags of part 1",
        ),
        (
            {"action": "merge", "concepts": ["sarcastic tone", "engine"], "name": "x"},
            "'sarcastic tone' is not a concept of found tags but one that people wrote",
        ),
        ({"action": "add", "concept": {"name": "Engine"}}, "another concept is called 'Engine' already"),
    ],
)
def test_an_entry_that_does_not_fit_is_one_clear_line(entry: object, message: str) -> None:
    with pytest.raises(VitrailError) as caught:
        decided(entry, own=[SARCASM])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_concepts_that_are_gone_are_all_named_at_once_or_passed_over() -> None:
    entries = [
        {"action": "rename", "concept": "xxx", "name": "x"},
        {"action": "rename", "concept": "engine", "name": "motors"},
        {"action": "split", "concept": "qqq", "into": 2},
        {"action": "merge", "concepts": ["motors", "zzz"], "name": "y"},
    ]
    with pytest.raises(ConceptNotFound) as caught:
        decided(*entries)
    assert str(caught.value) == (
        "decision 1 (rename 'xxx'): no concept is called 'xxx'; correct the entry's name and tags, or remove "
        "the entry, or write `when_gone: skip` into the file (gone too: the concepts of decisions 3, 4)"
    )
    result = apply(parse_decisions({"when_gone": "skip", "decisions": entries}, "file"), DRAFTS, vectors)
    assert [draft.name for draft in result.drafts] == [RIVERS.name, MONEY.name, "motors"]
    assert [line.partition(":")[0] for line in result.gone] == [
        "decision 1 (rename 'xxx')",
        "decision 3 (split 'qqq')",
        "decision 4 (merge 'motors' + 'zzz')",
    ]


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (
            [
                {"action": "rename", "concept": "a", "name": "b"},
                {"action": "forbid", "concept": "A"},
            ],
            "decision 1 (rename 'a') and decision 2 (forbid 'A') contradict each other; keep one of them",
        ),
        (
            [
                {"action": "rename", "concept": "a", "name": "x"},
                {"action": "rename", "concept": "b", "name": "X"},
            ],
            "decision 2 (rename 'b') gives the name 'x' a second time; choose another name",
        ),
        (
            [{"action": "add", "concept": {"name": "a"}}, {"action": "rename", "concept": "a", "name": "b"}],
            "decision 2 (rename 'a'): 'a' is added in this file; change that entry instead",
        ),
        ([{"action": "merge", "concepts": ["a", "A"], "name": "b"}], "names 'a' twice; name each concept once"),
        ([{"action": "split", "concept": "a"}], "needs either 'into' (a number) or at least two 'parts'"),
        (
            [{"action": "split", "concept": "a", "into": 2, "parts": [{"name": "b", "tags": ["c"]}]}],
            "needs either 'into' (a number) or at least two 'parts'",
        ),
        (
            [{"action": "split", "concept": "a", "into": 2, "parts": [{"name": "x", "tags": ["t"]}] * 2}],
            "tag 't' stands in two parts; keep one",
        ),
        ([{"action": "renam", "concept": "a"}], "decision 1: unknown action 'renam'; did you mean 'rename'"),
        ([{"concept": "a"}], "decision 1: no action; write one of rename, merge, split, forbid, add"),
        (["rename"], "decision 1: no action"),
        (
            [{"action": "add", "concept": {"name": "a", "exampels": []}}],
            "decision 1 (add): unknown setting 'concept.exampels'; did you mean 'examples'",
        ),
        ([{"action": "rename", "concept": " ", "name": "b"}], "concept.name"),
    ],
)
def test_a_wrong_file_is_one_clear_line(tmp_path: Path, entries: list[object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_decisions({"decisions": entries}, "decisions.yaml")
    assert str(caught.value).startswith("decisions.yaml: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_chain_of_names_does_not_contradict_itself() -> None:
    entries = [
        {"action": "rename", "concept": "engine", "name": "motors"},
        {"action": "rename", "concept": "motors", "name": "engine"},
        {"action": "rename", "concept": "engine", "description": "Motors."},
        {"action": "forbid", "concept": "engine"},
        {"action": "add", "concept": {"name": "engine"}},
    ]
    assert decided(*entries) == (RIVERS, MONEY)


def test_a_file_is_read_with_bare_names_and_without_entries(tmp_path: Path) -> None:
    path = tmp_path / "decisions.yaml"
    path.write_text("# none yet\ndecisions:\n", encoding="utf-8")
    assert load_decisions(path) == Decisions()
    path.write_text("decisions:\n- action: forbid\n  concept: engine\n", encoding="utf-8")
    assert decided(*load_decisions(path).model_dump()["decisions"]) == (RIVERS, MONEY)


def test_decisions_survive_as_plain_values() -> None:
    """They enter the settings of an atlas, and so its id."""
    entries = [
        {"action": "rename", "concept": "a", "name": "b"},
        {"action": "split", "concept": "b", "into": 2},
        {"action": "add", "concept": {"name": "c"}},
    ]
    decisions = parse_decisions({"decisions": entries}, "file")
    assert Decisions.model_validate(decisions.model_dump(mode="json")) == decisions
