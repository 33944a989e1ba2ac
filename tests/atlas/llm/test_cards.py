"""Names of concepts by a language model over real HTTP; the embedded name where it gives none."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.atlas.llm.chat_server import Act, ChatServer, serving
from vitrail.atlas.concepts.llm_cards import Named, ToName, name_by_llm
from vitrail.atlas.llm import Asker, Endpoint, Journal, LanguageModel, Prompt

CONCEPTS = [
    ToName("exports, tariff", "Passages on exports.", "content", ("exports", "tariff"), ("cargo",), ("Ship it.",)),
    ToName("imports", "Passages on imports.", "content", ("imports",), (), ()),
    ToName("please, kindly", "Passages on please.", "content", ("please",), ("kindly",), ("Would you please?",)),
]


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with serving(lambda q, n: Act()) as running:
        yield running


def named(
    server: ChatServer, folder: Path, answers: dict[str, str], others: tuple[str, ...] = ()
) -> tuple[list[Named], dict[str, int]]:
    """Names, where the answer is chosen by the first tag of the question."""
    server.script = lambda q, n: Act(answers[q.removeprefix("Tags: ").split("\n")[0].split(", ")[0]])
    endpoint = Endpoint(url=server.url, max_retries=0, max_fault_share=1)
    with Journal(folder / "a.jsonl") as journal:
        asker = Asker(LanguageModel(model="m", attempts=1), endpoint, journal)
        return name_by_llm(CONCEPTS, asker, Prompt.builtin("concept"), others), asker.tally.counts()


def said(name: str, kind: str = "content") -> str:
    return json.dumps({"name": name, "description": f"About {name}.", "kind": kind})


def test_names_descriptions_and_kinds(server: ChatServer, tmp_path: Path) -> None:
    found, counts = named(
        server,
        tmp_path,
        {"exports": said(" Foreign  trade "), "imports": said("Customs"), "please": said("Politeness", "tone")},
    )
    assert found == [
        Named("Foreign trade", "About Foreign trade .", "content", True),
        Named("Customs", "About Customs.", "content", True),
        Named("Politeness", "About Politeness.", "tone", True),
    ]
    assert counts == {"answered": 3}
    sent = server.requests[0]["messages"][1]["content"]
    assert "Ship it." in sent or "imports" in sent or "Would you" in sent


@pytest.mark.parametrize(
    "garbage",
    ["", "no json", '{"name": "x"}', said(""), said("a\nb"), said("x" * 61), said("x", kind="colour"), '{"name": 3}'],
)
def test_embedded_name_stays_where_there_is_no_answer(server: ChatServer, tmp_path: Path, garbage: str) -> None:
    found, counts = named(
        server, tmp_path, {"exports": garbage, "imports": said("Customs"), "please": said("Politeness")}
    )
    assert found[0] == Named("exports, tariff", "Passages on exports.", "content", False)
    assert [one.is_by_llm for one in found] == [False, True, True]
    assert counts["answered"] == 2
    assert sum(counts.values()) == 3


def test_names_are_unique_whatever_the_case(server: ChatServer, tmp_path: Path) -> None:
    found, _ = named(server, tmp_path, {"exports": said("Trade"), "imports": said("trade"), "please": said("TRADE")})
    assert [one.name for one in found] == ["Trade", "trade (imports)", "TRADE (please, kindly)"]


def test_given_name_does_not_take_an_embedded_one_that_stays(server: ChatServer, tmp_path: Path) -> None:
    found, _ = named(server, tmp_path, {"exports": said("Imports"), "imports": "", "please": said("exports, tariff")})
    assert [one.name for one in found] == ["Imports (exports, tariff)", "imports", "exports, tariff"]


def test_names_can_be_steered_and_printed(server: ChatServer, tmp_path: Path) -> None:
    answers = {"exports": said("##Goods; ships"), "imports": said("##"), "please": said("be\u2028kind\x1b[31m")}
    found, _ = named(server, tmp_path, answers)
    assert [one.name for one in found] == ["Goods, ships", "imports", "be kind [31m"]
    assert all(one.description.isprintable() for one in found)


def test_a_name_of_the_starter_set_is_not_given_again(server: ChatServer, tmp_path: Path) -> None:
    """Two cards of one name: steering and decisions by name would mean whichever comes first."""
    answers = {"exports": said("Trade"), "imports": said("Customs"), "please": said("Polite tone", "tone")}
    found, _ = named(server, tmp_path, answers, others=("polite tone",))
    assert [one.name for one in found] == ["Trade", "Customs", "Polite tone (please, kindly)"]
