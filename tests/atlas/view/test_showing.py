"""One concept, search by meaning, and frequencies compared, as the commands answer."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.atlas.view.making import Spec, make_card, random_documents, write_annotated
from vitrail.atlas import ConceptLibrary
from vitrail.atlas.view import compare_corpora, compare_groups, search_meaning, show_concept
from vitrail.atlas.view.gather import MOST_GROUPS
from vitrail.cli.atlas_view import marked
from vitrail.cli.main import main
from vitrail.errors import ArtifactError, ConceptNotFound

NUM = 6
NAMES = ("river", "mountain", "court of law", "stone", "wind", "glass")


@pytest.fixture(scope="module")
def documents() -> list[Spec]:
    return random_documents(8, num_documents=60, num_concepts=NUM)


@pytest.fixture(scope="module")
def place(documents: list[Spec], tmp_path_factory: pytest.TempPathFactory) -> Path:
    cards = [make_card(c, NAMES[c], path=("G", "GB")) for c in range(NUM)]
    return write_annotated(tmp_path_factory.mktemp("show") / "annotated", cards, documents)


@pytest.fixture
def answer(capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Runs a command; gives its JSON, or its text."""

    def answering(*words: object, code: int = 0) -> Any:
        with pytest.raises(SystemExit) as ended:
            main(["atlas", *map(str, words)])
        out, err = capsys.readouterr()
        assert ended.value.code == code, err
        if code:
            return err.splitlines()[-1]
        return json.loads(out) if "--json" in words else out

    return answering


def _carrying(documents: list[Spec], concept: int, source: str | None = None) -> int:
    return sum(
        concept in spans for document in documents if source in (None, document.source) for _, spans in document.chunks
    )


def test_shown_concept_agrees_with_the_corpus(place: Path, documents: list[Spec]) -> None:
    shown = show_concept(place, "Court of LAW", num_neighbours=5, num_examples=3)
    assert shown.card.concept_id == 2
    assert sorted(near.concept_id for near in shown.near) == [0, 1, 3, 4, 5]
    assert {one.name: one.carrying for one in shown.sources} == {
        document.source: _carrying(documents, 2, document.source) for document in documents
    }
    assert sum(one.carrying for one in shown.domains) == _carrying(documents, 2)
    assert len(shown.examples) == 3
    for example in shown.examples:
        assert [example.text[start:stop] for start, stop in example.spans] == ["word2"]
    scores = [example.score for example in shown.examples]
    assert scores == sorted(scores, reverse=True)


def test_show_and_its_json_say_the_same(place: Path, answer: Callable[..., Any]) -> None:
    text, plain = answer("show", place, "#3", "--examples", 1), answer("show", place, "#3", "--examples", 1, "--json")
    assert plain["name"] == "stone"
    assert "place:  G › GB" in text
    assert "«word3»" in text
    assert f"{plain['near'][0]['cosine']:.2f}  #{plain['near'][0]['concept_id']}" in text
    assert plain["sources"][0]["name"] in text
    assert len(plain["examples"]) == 1


def test_a_model_directory_shows_its_cards(place: Path, tmp_path: Path) -> None:
    ConceptLibrary.load(place).save(tmp_path / "concepts.parquet")
    shown = show_concept(tmp_path, "wind", 5, 3)
    assert shown.card.name == "wind"
    assert (shown.near, shown.examples) == ((), ())


def test_unknown_concept_names_the_nearest(place: Path, answer: Callable[..., Any]) -> None:
    with pytest.raises(ConceptNotFound, match="did you mean 'river'"):
        show_concept(place, "rivers", 5, 3)
    assert "did you mean 'river'" in answer("show", place, "rivers", code=2)


def test_search_by_meaning_finds_what_words_do_not(place: Path, answer: Callable[..., Any], tmp_path: Path) -> None:
    library = ConceptLibrary.load(place)
    assert library.search("lawsuit", 3) == []
    assert search_meaning(library, "lawsuit before a judge", 2)[0][0].name == "court of law"
    found = answer("search", place, "alpine summit", "--meaning", "--limit", 1, "--json")["concepts"]
    assert [concept["name"] for concept in found] == ["mountain"]
    assert 0 < found[0]["cosine"] <= 1
    words = ("search", place, "alpine summit", "--meaning", "--limit", 1, "--cache", tmp_path, "--json")
    cached = [answer(*words)["concepts"] for _ in range(2)]
    assert cached[0] == cached[1]
    assert cached[0][0]["cosine"] == pytest.approx(found[0]["cosine"], abs=0.01)  # bf16, other batches
    assert list(tmp_path.rglob("*.parquet"))
    assert "only --meaning needs" in answer("search", place, "lawsuit", "--cache", tmp_path, code=2)
    assert "write words in UTF-8" in answer("search", place, "b\udcff", "--meaning", code=2)
    assert answer("search", place, "lawsuit") == "no concept matches 'lawsuit'\n"


def test_marked_text_leaves_out_inner_spans() -> None:
    assert marked("a bc d", ((2, 4), (2, 3), (5, 6))) == "a «bc» «d»"
    assert marked("plain", ()) == "plain"


def _corpus(folder: Path, shares: dict[str, dict[int, int]], names: tuple[str, ...]) -> Path:
    """Twenty documents of ten chunks a source; `shares[source][concept]`: chunks of each document that carry it."""
    documents = [
        Spec(
            f"{folder.name}-{source}-{n}",
            [("x", {c: [] for c, k in carried.items() if i < k}) for i in range(10)],
            source,
        )
        for source, carried in shares.items()
        for n in range(20)
    ]
    return write_annotated(folder, [make_card(c, name) for c, name in enumerate(names)], documents)


def test_two_corpora_are_matched_by_name(tmp_path: Path) -> None:
    a = _corpus(tmp_path / "a", {"web": {0: 6, 1: 3, 2: 1}}, ("Rivers", "stone", "wind"))
    b = _corpus(tmp_path / "b", {"web": {0: 3, 1: 2}}, ("stone", "RIVERS", "glass"))
    found = compare_corpora(a, b)
    rows = {row.name: row for row in found.differences}
    assert set(rows) == {"Rivers", "stone"}
    assert (rows["Rivers"].first_share, rows["Rivers"].second_share) == (0.6, 0.2)
    assert (rows["Rivers"].first_id, rows["Rivers"].second_id) == (0, 1)
    assert rows["Rivers"].log_odds == pytest.approx(1.79, abs=0.02)  # log (0.6/0.4) − log (0.2/0.8)
    assert rows["Rivers"].low > 0
    assert rows["stone"].low < 0 < rows["stone"].high
    assert found.differences[0].name == "Rivers"
    assert (found.only_first, found.only_second) == (("wind",), ("glass",))
    turned = {row.name: row for row in compare_corpora(b, a).differences}
    assert turned["RIVERS"].log_odds == pytest.approx(-rows["Rivers"].log_odds)


def test_by_source_another_mixture_is_no_difference(tmp_path: Path) -> None:
    """Simpson: within each source both corpora are alike; taken whole they differ, as one source is larger."""
    names = ("river", "stone")
    a = _corpus(tmp_path / "a", {"web": {0: 8}, "book": {0: 1}, "old": {1: 1}}, names)
    documents = [Spec(f"w{n}", [("x", {0: []} if i < 8 else {}) for i in range(10)], "web") for n in range(200)]
    documents += [Spec(f"k{n}", [("x", {0: []} if i < 1 else {}) for i in range(10)], "book") for n in range(20)]
    b = write_annotated(tmp_path / "b", [make_card(c, name) for c, name in enumerate(names)], documents)
    whole = {row.name: row for row in compare_corpora(a, b).differences}
    assert whole["river"].high < 0
    found = compare_corpora(a, b, "source")
    assert {row.group for row in found.differences} == {"web", "book"}
    assert all(row.low < 0 < row.high for row in found.differences if row.name == "river")
    assert found.left_out == ("old",)


def test_groups_of_one_corpus(tmp_path: Path, answer: Callable[..., Any]) -> None:
    place = _corpus(tmp_path / "a", {"web": {0: 8}, "book": {0: 1, 1: 4}}, ("river", "stone"))
    found = compare_groups(place, "source")
    best = {
        group: [row.name for row in found.differences if row.group == group and row.low > 0]
        for group in ("web", "book")
    }
    assert best == {"web": ["river"], "book": ["stone"]}
    plain = answer("compare", place, "--by", "source", "--json")
    assert plain["differences"][0]["first_share"] in (0.8, 0.1)
    assert "log odds ratio" in plain["measure"]
    text = answer("compare", place, "--by", "source")
    assert "concepts that are more frequent: 1\n" in text
    assert "80.00% against  10.00%  river" in text


def test_nothing_to_compare_is_said_in_one_line(tmp_path: Path, answer: Callable[..., Any]) -> None:
    a = _corpus(tmp_path / "a", {"web": {0: 5}}, ("river",))
    b = _corpus(tmp_path / "b", {"net": {0: 5}}, ("glass",))
    assert "give --by source or --by domain" in answer("compare", a, code=2)
    with pytest.raises(ArtifactError, match="all chunks are of one source"):
        compare_groups(a, "source")
    with pytest.raises(ArtifactError, match="no concept in common"):
        compare_corpora(a, b)
    c = _corpus(tmp_path / "c", {"net": {0: 5}}, ("river",))
    with pytest.raises(ArtifactError, match="no source in common"):
        compare_corpora(a, c, "source")


def test_chunks_without_a_source_are_not_all_chunks(tmp_path: Path, answer: Callable[..., Any]) -> None:
    """Grouped, those that name none were printed as "all chunks"."""
    a = _corpus(tmp_path / "a", {"": {0: 8}, "book": {0: 1, 1: 4}}, ("river", "stone"))
    b = _corpus(tmp_path / "b", {"book": {0: 2}}, ("river", "stone"))
    text = answer("compare", a, "--by", "source")
    assert "\nnot named  (" in text
    assert "all chunks  (" not in text
    assert "groups in one corpus only: not named\n" in answer("compare", a, b, "--by", "source")
    assert "\nall chunks  (" in answer("compare", a, b)


def test_only_the_largest_groups_are_compared(tmp_path: Path, answer: Callable[..., Any]) -> None:
    """Every imported file is a source of its own: a corpus of thousands would give millions of rows."""
    documents = [Spec(f"d{n}", [("x", {0: []})] * (1 + n % 3), f"file {n}") for n in range(MOST_GROUPS + 7)]
    place = write_annotated(tmp_path / "a", [make_card(0, "river")], documents)
    for found in (compare_groups(place, "source"), compare_corpora(place, place, "source")):
        assert (len(found.differences), found.num_smaller) == (MOST_GROUPS, 7)
        assert sum(row.first_total == 1 for row in found.differences) == (MOST_GROUPS + 7) // 3 - 7
    assert "7 groups with fewer chunks are not compared" in answer("compare", place, "--by", "source")
    assert answer("compare", place, "--by", "source", "--json")["num_smaller_groups"] == 7


def test_page_command_takes_settings(place: Path, tmp_path: Path, answer: Callable[..., Any]) -> None:
    found = answer("page", place, "--out", tmp_path / "p", "--title", "Rivers", "--layout", "pca", "--json")
    assert "<title>Rivers" in Path(found["page"]).read_text(encoding="utf-8")
    assert found["counts"]["concepts"] == NUM
    assert "did you mean 'layout'" in answer("page", place, "--out", tmp_path / "q", "--layoud", "pca", code=2)
