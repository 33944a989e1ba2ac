"""Edits: taken on a real atlas, written to a file, and seen again."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from jaxtyping import Float32

from tests.atlas.conftest import SETTINGS
from vitrail.artifacts.stage import locked
from vitrail.atlas import Annotator, ConceptLibrary, build_atlas
from vitrail.atlas.concepts.applying import apply, find_draft
from vitrail.atlas.concepts.decisions import Anchor, Rename, load_decisions
from vitrail.atlas.concepts.edits import ANCHOR_TAGS, concepts_of, edit, entries
from vitrail.cli.main import main
from vitrail.errors import ArtifactError, ConceptNotFound, ConfigError, RunFailed


@pytest.fixture
def atlas(run: Path) -> Path:
    return run / "atlas"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "decisions.yaml"


def apart(tags: Sequence[str]) -> Float32[np.ndarray, "n n"]:
    return np.eye(len(tags), dtype=np.float32)


def names(atlas: Path) -> list[str]:
    return [draft.name for draft in concepts_of(atlas).drafts]


def test_every_found_concept_has_a_name_and_tags(atlas: Path) -> None:
    drafts = concepts_of(atlas).drafts
    assert len(drafts) >= 4
    assert all(draft.members and draft.name and draft.description for draft in drafts)


def test_the_tags_of_an_entry_mean_its_own_concept_and_no_other(atlas: Path) -> None:
    state = concepts_of(atlas)
    for i, draft in enumerate(state.drafts):
        anchor = Anchor(name="a name that is not there", tags=draft.members[:ANCHOR_TAGS])
        assert find_draft(anchor, state, "this decision") == i


def test_an_entry_holds_tags_that_find_the_concept_again(atlas: Path, path: Path) -> None:
    first = concepts_of(atlas).drafts[0]
    written = edit(path, atlas, {"action": "rename", "concept": first.name.upper(), "name": "renamed"})
    assert written == Rename(concept=Anchor(name=first.name, tags=first.members[:6]), name="renamed")
    assert load_decisions(path).decisions == (written,)


def test_what_is_written_can_be_carried_out(atlas: Path, path: Path) -> None:
    a, b, c, d, e = names(atlas)[:5]
    edit(path, atlas, {"action": "rename", "concept": a, "name": "renamed"})
    edit(path, atlas, {"action": "merge", "concepts": ["renamed", b], "name": "merged"})
    edit(path, atlas, {"action": "split", "concept": c, "into": 2})
    edit(path, atlas, {"action": "forbid", "concept": d})
    edit(path, atlas, {"action": "add", "concept": {"name": "own", "examples": ["Mine: entirely 'own'."]}})
    before = concepts_of(atlas)
    after = apply(load_decisions(path), before.drafts, apart, before.own)
    kept = [draft.name for draft in after.drafts]
    assert kept[0] == "merged"
    assert {a, b, c, d}.isdisjoint(kept)
    assert e in kept
    assert list(after.own[:-1]) == list(before.own)
    assert after.own[-1].name == "own"
    assert [entry.status for entry in entries(path, atlas)] == ["pending"] * 5


def test_comments_and_old_entries_stay(atlas: Path, path: Path) -> None:
    a, b = names(atlas)[:2]
    text = f"# mine\nwhen_gone: skip\ndecisions:  # in order\n\n  - action: forbid # out\n    concept: {json.dumps(a)}"
    path.write_text(text, encoding="utf-8")
    edit(path, atlas, {"action": "rename", "concept": b, "name": "renamed"})
    assert path.read_text(encoding="utf-8").startswith(text + "\n  - action: rename\n")
    assert [entry.decision.action for entry in entries(path, atlas)] == ["forbid", "rename"]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.text(st.characters(codec="utf-8"), min_size=1).filter(str.strip), min_size=2, max_size=4))
@example(["0", "0\x85"])
@example(["a\u2028", "\u2029b", "\ufeff"])
def test_whatever_people_write_is_read_back_as_written(atlas: Path, path: Path, texts: list[str]) -> None:
    path.unlink(missing_ok=True)
    name = "own " + "".join(sign for sign in "".join(texts) if sign.isprintable())
    values = {"name": name, "description": texts[0], "phrases": texts, "examples": texts[1:]}
    written = edit(path, atlas, {"action": "add", "concept": values})
    forbidden = edit(path, atlas, {"action": "forbid", "concept": names(atlas)[0]})
    assert load_decisions(path).decisions == (written, forbidden)
    assert written.model_dump(mode="json", exclude_defaults=True)["concept"] == values


@pytest.mark.parametrize("start", ["", "# only a comment\n", "decisions: []\n", "decisions:\n"])
def test_a_file_without_entries_is_added_to(atlas: Path, path: Path, start: str) -> None:
    path.write_text(start, encoding="utf-8")
    edit(path, atlas, {"action": "add", "concept": {"name": "own"}})
    assert len(load_decisions(path).decisions) == 1


def test_line_ends_of_the_file_stay(atlas: Path, path: Path) -> None:
    path.write_bytes(b"# mine\r\ndecisions:\r\n- action: add\r\n  concept: {name: a}\r\n")
    edit(path, atlas, {"action": "add", "concept": {"name": "b"}})
    assert path.read_bytes().startswith(b"# mine\r\ndecisions:\r\n- action: add\r\n  concept: {name: a}")


@pytest.mark.parametrize(
    "start",
    [
        "decisions: [{action: add, concept: {name: a}}]\n",
        "{decisions: []}\n",
    ],
)
def test_a_file_that_cannot_be_added_to_is_left_as_it_is(atlas: Path, path: Path, start: str) -> None:
    path.write_text(start, encoding="utf-8")
    with pytest.raises(ConfigError, match="cannot be added to the file as it is written; make `decisions:` its last"):
        edit(path, atlas, {"action": "add", "concept": {"name": "own"}})
    assert path.read_text(encoding="utf-8") == start


def test_a_refused_entry_leaves_the_file_as_it_is(atlas: Path, path: Path) -> None:
    a = names(atlas)[0]
    edit(path, atlas, {"action": "rename", "concept": a, "name": "renamed"})
    before = path.read_bytes()
    with pytest.raises(ConfigError, match="contradict each other"):
        edit(path, atlas, {"action": "forbid", "concept": a})
    with pytest.raises(
        ConceptNotFound, match=r"decision 2 \(forbid 'renamd'\): no concept is called.*did you mean 'ren"
    ):
        edit(path, atlas, {"action": "forbid", "concept": "renamd"})
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_entries_of_an_atlas_that_was_built_with_them_are_done(atlas: Path, path: Path) -> None:
    """The atlas has the new names; the old ones are gone, and so is what was forbidden."""
    kept = names(atlas)[0]
    text = f"""decisions:
- {{action: rename, concept: an old name, name: {json.dumps(kept)}}}
- {{action: forbid, concept: a forbidden name}}
- {{action: rename, concept: another old name, name: a name that is not there}}
"""
    path.write_text(text, encoding="utf-8")
    assert [entry.status for entry in entries(path, atlas)] == ["done", "done", "gone"]


def test_a_chain_that_was_carried_out_is_done(atlas: Path, path: Path) -> None:
    """What one merge made, the next one took up: the atlas has the last name alone."""
    kept = names(atlas)[0]
    text = f"""decisions:
- {{action: merge, concepts: [one gone, another gone], name: between}}
- {{action: merge, concepts: [between, a third gone], name: {json.dumps(kept)}}}
- {{action: rename, concept: elsewhere, name: nowhere}}
"""
    path.write_text(text, encoding="utf-8")
    assert [entry.status for entry in entries(path, atlas)] == ["done", "done", "gone"]


def test_an_edited_atlas_is_edited_again(run: Path, path: Path, tmp_path: Path) -> None:
    """Decisions move the ids: every concept still has its own tags, and the table of clusters knows the new ids."""
    atlas, again = run / "atlas", tmp_path / "again"
    first, second, third, *_ = names(atlas)
    edit(path, atlas, {"action": "merge", "concepts": [first, third], "name": "merged"})
    edit(path, atlas, {"action": "forbid", "concept": second})
    settings = SETTINGS.model_copy(update={"decisions": load_decisions(path)})
    build_atlas(run / "corpus", again, settings)
    annotator = Annotator.load(again)
    state = concepts_of(again)
    found = {card.name: card.concept_id for card in ConceptLibrary.load(again).cards}
    for draft in state.drafts:
        assert sorted(draft.members) == annotator.member_tags(found[draft.name])
    assert {concept.name for concept in concepts_of(atlas).own} == {concept.name for concept in state.own}
    clusters = {row["concept_id"]: row for row in pq.read_table(again / "clusters.parquet").to_pylist()}
    for draft in state.drafts[1:]:
        assert set(draft.members) <= set(clusters[found[draft.name]]["tags"])
    assert found["merged"] not in clusters
    dropped = pq.read_table(again / "clusters.parquet")["dropped"].to_pylist()
    assert dropped.count("forbidden or changed by a decision") == 3


def test_two_who_edit_at_once_do_not_lose_an_entry(atlas: Path, path: Path) -> None:
    with locked(path.with_name(f".{path.name}.lock"), path), pytest.raises(RunFailed, match="another process"):
        edit(path, atlas, {"action": "add", "concept": {"name": "own"}})
    assert not path.exists()


def test_something_else_than_an_atlas_is_refused(run: Path, path: Path) -> None:
    with pytest.raises(ArtifactError):
        edit(path, run / "corpus", {"action": "add", "concept": {"name": "own"}})


def test_the_command(atlas: Path, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = names(atlas)[:2]
    words = ["atlas", "edit", str(atlas), "--decisions", str(path)]

    def say(*more: str) -> int:
        with pytest.raises(SystemExit) as ended:
            main([*words, *more])
        return int(ended.value.code or 0)

    assert say("rename", a, "renamed", "--kind", "tone", "--json") == 0
    assert json.loads(capsys.readouterr().out)["decision"]["kind"] == "tone"
    tags = concepts_of(atlas).drafts[1].members
    assert say("split", b, "--part", f"one: {tags[0]}", "--part", f"two: {tags[1]}") == 0
    told = f"vitrail atlas build CORPUS --num_concepts {SETTINGS.num_concepts} --decisions {path}"
    assert told in capsys.readouterr().out, "with other settings a build finds other concepts"
    assert say("add", "own", "--phrase", "a phrase", "--example", "One.", "--example", "Two.") == 0
    assert say("list", "own") == 2
    capsys.readouterr()
    assert say("list") == 0
    assert capsys.readouterr().out.splitlines() == [
        f"pending decision 1 (rename '{a}') → 'renamed'",
        f"pending decision 2 (split '{b}') → 'one', 'two'",
        "pending decision 3 (add 'own')",
    ]
    for wrong in (["rename", a], ["merge", a, "--name", "x"], ["add", "x", "y"], ["forbid", "no such concept"]):
        assert say(*wrong) == 2
        assert capsys.readouterr().err.count("\n") == 1
