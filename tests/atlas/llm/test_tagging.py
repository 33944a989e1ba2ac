"""Tags of a language model over real HTTP, and the table they share with phrases of the text."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.atlas.llm.chat_server import Act, ChatServer, serving
from vitrail.atlas.concepts.geometry import count_matrix
from vitrail.atlas.llm import Asker, Endpoint, Journal, TaggingModel
from vitrail.atlas.tags import Tagger
from vitrail.atlas.tags.endpoint import EndpointTagger, tag_with_endpoint
from vitrail.atlas.tags.tagging import Tagging
from vitrail.atlas.tags.writing import tag_table
from vitrail.errors import RunFailed

TOPICS = {
    "reef": ["Coral Reefs", "marine life", "NOAA"],
    "loan": ["Interest rate", "bank loans", "debt"],
    "organ": ["pipe organ", "church music", "counterpoint"],
}


def text_of(i: int) -> str:
    topic = list(TOPICS)[i % len(TOPICS)]
    name = "abcdefghijklmnopqrstuvwxyz"[i % 26] * (2 + i // 26)
    return f"Passage {name} speaks of the {topic} and of {'wooden boats' if i % 2 else 'bank loans'}."


TEXTS = [text_of(i) for i in range(60)]


def tags_in(passage: str) -> list[str]:
    (topic,) = (topic for topic in TOPICS if f"the {topic} and" in passage)
    return TOPICS[topic]


def answer(question: str, number: int) -> Act:
    """What a good model says: to one passage, or to numbered ones."""
    parts = re.split(r"\n\[(\d+)\]\n", "\n" + question.partition("Passage:")[2].strip())
    if len(parts) == 1:
        return Act(json.dumps({"tags": tags_in(question)}))
    numbered = [(int(parts[i]), parts[i + 1].partition("These are")[0]) for i in range(1, len(parts), 2)]
    return Act(json.dumps({"passages": [{"number": n, "tags": tags_in(text)} for n, text in numbered]}))


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with serving(answer) as running:
        yield running


def found_in(texts: list[str]) -> Tagging:
    """Phrases of the texts, chosen by hand: which ones are good tags is another's business."""
    tags = ("bank loans", "passage", "wooden boats")
    found = [Tagger(tags).tag(text) for text in texts]
    counts = count_matrix([[occurrence.tag for occurrence in row] for row in found], len(tags))
    return Tagging(tag_table(texts, tags, found), counts, counts)


@pytest.fixture
def embedded() -> Tagging:
    return found_in(TEXTS)


def tagger(server: ChatServer, folder: Path, **model: Any) -> EndpointTagger:
    endpoint = Endpoint(url=server.url, max_retries=0)
    llm = TaggingModel.parse({"model": "m", "attempts": 1} | model)
    return EndpointTagger(Asker(llm, endpoint, Journal(folder / "a.jsonl")), llm.tags, llm.chunks_per_request)


def test_tags_are_normalised(server: ChatServer, tmp_path: Path) -> None:
    written = ["  Coral   REEFS ", "coral reef", "“Ｆull-width”", "1984", "", "...", "a " * 9, "Straße"]
    server.script = lambda q, n: Act(json.dumps({"tags": written}))
    assert tagger(server, tmp_path).tag(["x"]) == [["coral reefs", "full-width", "strasse"]]


def test_a_model_that_runs_on_is_cut(server: ChatServer, tmp_path: Path) -> None:
    server.script = lambda q, n: Act(json.dumps({"tags": [f"tag {chr(97 + i % 26)}{i}x" for i in range(500)]}))
    assert len(tagger(server, tmp_path).tag(["x"])[0]) == 30


@pytest.mark.parametrize("per_request", [1, 7])
def test_each_chunk_gets_its_own_tags(server: ChatServer, tmp_path: Path, per_request: int) -> None:
    found = tagger(server, tmp_path, chunks_per_request=per_request).tag(TEXTS)
    assert found == [[tag.lower() for tag in tags_in(text)] for text in TEXTS]
    assert len(server.requests) == -(-60 // per_request)


def test_groups_do_not_depend_on_the_order_of_chunks(server: ChatServer, tmp_path: Path) -> None:
    first = tagger(server, tmp_path, chunks_per_request=7).tag(TEXTS)
    asked = len(server.requests)
    assert tagger(server, tmp_path, chunks_per_request=7).tag(TEXTS[::-1]) == first[::-1]
    assert len(server.requests) == asked, "the same groups, all in the journal"


def test_chunks_that_a_group_left_out_are_asked_alone(server: ChatServer, tmp_path: Path) -> None:
    def forgetful(question: str, number: int) -> Act:
        said = json.loads(answer(question, number).text)
        if "passages" in said:  # a number twice, one that is none, one without tags, one left out
            kept = said["passages"]
            kept[1]["tags"] = []
            said["passages"] = [*kept[:3], kept[0] | {"tags": ["wrong"]}, {"number": 99, "tags": ["wrong"]}]
        return Act(json.dumps(said))

    server.script = forgetful
    found = tagger(server, tmp_path, chunks_per_request=6).tag(TEXTS)
    assert found == [[tag.lower() for tag in tags_in(text)] for text in TEXTS]
    assert len(server.requests) == 10 + 10 * 4


def test_table_holds_both_and_keeps_them_apart(server: ChatServer, tmp_path: Path, embedded: Tagging) -> None:
    tagging = tag_with_endpoint(TEXTS, embedded, tagger(server, tmp_path), min_chunks=3, max_tags=100)
    number = {tag: i for i, tag in enumerate(tagging.table.tags)}
    assert list(tagging.table.tags) == sorted(tagging.table.tags)
    assert set(embedded.table.tags) <= set(number)
    assert {"coral reefs", "noaa", "pipe organ"} <= set(number)
    given, found = tagging.given.toarray(), tagging.occurrences.toarray()
    assert given[:, number["coral reefs"]].tolist() == [float(i % 3 == 0) for i in range(60)]
    assert given[:, number["bank loans"]].tolist() == [float(i % 3 == 1) for i in range(60)]
    stands = [float(i % 2 == 0) for i in range(60)]
    assert found[:, number["bank loans"]].tolist() == stands, "whatever the model says"
    assert found[:, number["coral reefs"]].max() == 0
    only_phrases = set(embedded.table.tags) - {tag.lower() for tags in TOPICS.values() for tag in tags}
    assert not given[:, [number[tag] for tag in only_phrases]].any()


def test_tags_are_shown_as_written(server: ChatServer, tmp_path: Path, embedded: Tagging) -> None:
    table = tag_with_endpoint(TEXTS, embedded, tagger(server, tmp_path), min_chunks=3, max_tags=100).table
    display = dict(zip(table.tags, table.display, strict=True))
    assert display["noaa"] == "NOAA"
    assert display["coral reefs"] == "Coral Reefs"


def test_rare_tags_are_left_out(server: ChatServer, tmp_path: Path, embedded: Tagging) -> None:
    server.script = lambda q, n: Act(json.dumps({"tags": [*tags_in(q), f"only {'xyz'[n % 3]}{n}q"]}))
    table = tag_with_endpoint(TEXTS, embedded, tagger(server, tmp_path), min_chunks=3, max_tags=5).table
    assert not any(tag.startswith("only ") for tag in table.tags)
    assert len(set(table.tags) - set(embedded.table.tags)) <= 5


def test_forms_of_one_tag_are_one(server: ChatServer, tmp_path: Path, embedded: Tagging) -> None:
    """ "bank loan" and "bank loans" from different chunks meet in the form that stands in the texts."""
    server.script = lambda q, n: Act(json.dumps({"tags": ["bank loan"] if "organ" in q else ["Bank Loans"]}))
    tagging = tag_with_endpoint(TEXTS, embedded, tagger(server, tmp_path), min_chunks=3, max_tags=100)
    assert "bank loan" not in tagging.table.tags
    assert tagging.given.toarray()[:, tagging.table.tags.index("bank loans")].tolist() == [1.0] * 60


def test_no_tag_twice_is_one_line(server: ChatServer, tmp_path: Path, embedded: Tagging) -> None:
    server.script = lambda q, n: Act(json.dumps({"tags": [f"word{chr(97 + n % 26)}{chr(97 + n // 26)}"]}))
    with pytest.raises(RunFailed, match="gave 60 different tags, none of them to 3 chunks or more"):
        tag_with_endpoint(TEXTS, embedded, tagger(server, tmp_path), min_chunks=3, max_tags=100)


@given(order=st.permutations(range(12)), late=st.integers(0, 11))
@settings(deadline=None, max_examples=10)
def test_same_table_whatever_the_order_of_answers(
    tmp_path_factory: pytest.TempPathFactory, order: list[int], late: int
) -> None:
    """Chunks in another order, an answer that comes late: the same tags with the same chunks."""
    texts = TEXTS[:12]
    with serving(lambda q, n: Act(answer(q, n).text, delay_s=0.03 * (n == late))) as server:
        folder = tmp_path_factory.mktemp("tags")
        shuffled = [texts[i] for i in order]
        one, other = (
            tag_with_endpoint(some, found_in(some), tagger(server, folder), min_chunks=3, max_tags=50)
            for some in (texts, shuffled)
        )
        assert one.table == other.table
        assert np.array_equal(one.given.toarray()[order], other.given.toarray())
