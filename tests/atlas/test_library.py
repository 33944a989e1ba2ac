"""The library: round trip, lookup by name, suggestions."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitrail.atlas import Card, ConceptLibrary
from vitrail.errors import ArtifactError, ConceptNotFound


def make_card(concept_id: int, name: str, head: str = "known") -> Card:
    assert head in ("known", "discovered")
    return Card(
        concept_id=concept_id,
        head="known" if head == "known" else "discovered",
        name=name,
        description=f"Passages on {name}.",
        kind="content",
        words=(name.split()[0], "thing"),
        lift=(3.5, 1.25),
        path=(),
        num_chunks=7,
        threshold=3.5,
        is_automatic=True,
    )


@pytest.fixture
def library() -> ConceptLibrary:
    names = ("cardiology", "shortest path", "Supreme Court, judges")
    return ConceptLibrary([*map(make_card, range(3), names), make_card(0, "cardiology", "discovered")])


def test_names_are_found_whatever_their_case(library: ConceptLibrary) -> None:
    assert library.find("SHORTEST  path").concept_id == 1
    assert library.find("cardiology", head="discovered").head == "discovered"


@pytest.mark.parametrize(
    ("name", "hint"),
    [("cardiolgy", "cardiology"), ("shortest", "shortest path"), ("court", "Supreme Court, judges")],
)
def test_a_wrong_name_gets_the_nearest(library: ConceptLibrary, name: str, hint: str) -> None:
    with pytest.raises(ConceptNotFound, match=f"did you mean .*'{hint}'"):
        library.find(name)


def test_a_name_goes_before_a_number() -> None:
    library = ConceptLibrary([make_card(0, "first"), make_card(1, "#0")])
    assert library.find("#0").name == "#0"
    assert library.find("#1").name == "#0"


def test_a_number_of_any_length_is_no_concept(library: ConceptLibrary) -> None:
    with pytest.raises(ConceptNotFound, match="no known concept is called"):
        library.find("#" + "9" * 5_000)


def test_unknown_ids_name_the_count(library: ConceptLibrary) -> None:
    assert library.num_known == 3
    with pytest.raises(ConceptNotFound, match="no known concept 3; the library has 3"):
        library.card("known", 3)


def test_an_unknown_name_gets_those_that_list_its_like() -> None:
    library = ConceptLibrary([make_card(i, name) for i, name in enumerate(("card", "wagon, cars, engine", "rain"))])
    with pytest.raises(ConceptNotFound, match=r"did you mean 'wagon, cars, engine' or 'card'\?"):
        library.find("car")


def test_an_unknown_name_gets_those_that_speak_of_it_rather_than_those_that_look_like_it() -> None:
    speaks = replace(make_card(1, "harvest"), words=("exports", "crops"))
    library = ConceptLibrary([make_card(0, "poverty, sector"), speaks])
    with pytest.raises(ConceptNotFound, match=r"did you mean 'harvest'\?"):
        library.find("exports")


def test_search_ranks_the_concept_that_is_called_so_first() -> None:
    names = ("oil and gas law, oil", "oil, prices of oil", "oil")
    library = ConceptLibrary([make_card(i, name) for i, name in enumerate(names)])
    assert library.search("Oil")[0].concept_id == 2


def test_search_ranks_names_before_words(library: ConceptLibrary) -> None:
    assert library.search("path")[0].name == "shortest path"
    assert library.search("nothing-like-it") == []
    assert len(library.search("thing", limit=2)) == 2


def test_two_cards_of_one_id_are_refused() -> None:
    with pytest.raises(ArtifactError, match="share one head and id"):
        ConceptLibrary([make_card(0, "a"), make_card(0, "b")])


def test_a_broken_library_is_named(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="no concept library"):
        ConceptLibrary.load(tmp_path)
    (tmp_path / "concepts.parquet").write_bytes(b"PAR1 and then nothing")
    with pytest.raises(ArtifactError, match="not a concept library"):
        ConceptLibrary.load(tmp_path)


@settings(max_examples=15, deadline=None)
@given(names=st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), min_size=1, max_size=5))
def test_load_of_save_is_the_same(names: list[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.mktemp("library") / "concepts.parquet"
    cards = tuple(make_card(i, f"{i} {name}") for i, name in enumerate(names))
    ConceptLibrary(cards).save(file)
    assert ConceptLibrary.load(file).cards == cards


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda table: table.drop_columns(["words"]), "no column 'words'"),
        (lambda table: pa.table({"x": [1]}), "no column 'concept_id'"),
        (lambda table: table.set_column(2, "name", pa.array([None] * len(table), pa.string())), "without 'name'"),
        (lambda table: table.set_column(1, "head", pa.array(["tail"] * len(table))), "unknown head 'tail'"),
    ],
)
def test_a_table_of_other_columns_is_refused(
    library: ConceptLibrary, tmp_path: Path, change: Callable[[pa.Table], pa.Table], message: str
) -> None:
    """Missing columns were read as empty ones, and the library opened without names."""
    file = tmp_path / "concepts.parquet"
    library.save(file)
    pq.write_table(change(pq.read_table(file)), file)
    with pytest.raises(ArtifactError, match=message):
        ConceptLibrary.load(file)
