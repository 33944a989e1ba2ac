"""Relevance of the labels of a real annotated corpus, by the rule and by a language model over real HTTP."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.atlas.llm.chat_server import Act, ChatServer, serving
from vitrail.artifacts import read_manifest
from vitrail.atlas import AnnotatedCorpus, Card, Chunk, ConceptLibrary, Label
from vitrail.atlas.concepts.encoder import minilm
from vitrail.atlas.judge.evaluating import evaluate_relevance
from vitrail.atlas.judge.raters import EmbeddedRater
from vitrail.atlas.judge.relevance import (
    NUM_REFERENCE,
    Drawn,
    Ratings,
    RelevanceSettings,
    concept_table,
    draw,
    rate,
    report,
)
from vitrail.atlas.llm import Endpoint
from vitrail.cli.endpoints import say
from vitrail.cli.main import main
from vitrail.errors import ConfigError, CorpusError, RunFailed
from vitrail.metrics import mean_interval

SETTINGS = RelevanceSettings(sample=70, per_concept=1, shuffled=150, min_ratings=2)
BY_LLM = RelevanceSettings.parse(
    {"judge": "endpoint", "sample": 30, "per_concept": 1, "shuffled": 20, "llm": {"model": "m", "attempts": 1}}
)


@pytest.fixture(scope="session")
def corpus(run: Path) -> AnnotatedCorpus:
    return AnnotatedCorpus.open(run / "annotated")


@pytest.fixture(scope="session")
def drawn(corpus: AnnotatedCorpus) -> Drawn:
    return draw(corpus, SETTINGS)


@pytest.fixture(scope="session")
def rater(drawn: Drawn) -> EmbeddedRater:
    return EmbeddedRater(minilm(), drawn.chunks)


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with serving(by_name) as running:
        yield running


def by_name(question: str, number: int) -> Act:
    """A reader who looks for the first word of the concept's name: 4 if it is there, else 1."""
    found = re.search(r"Concept: (\w+).*?Passage:(.*)", question, re.DOTALL)
    assert found is not None
    is_there = found[1].lower() in found[2].lower()
    return Act(json.dumps({"relevance": 4 if is_there else 1}))


def test_draw_is_a_function_of_corpus_and_seed(corpus: AnnotatedCorpus, drawn: Drawn) -> None:
    assert draw(corpus, SETTINGS) == drawn
    other = draw(corpus, SETTINGS.model_copy(update={"seed": 1}))
    assert {chunk.row for chunk in other.chunks} != {chunk.row for chunk in drawn.chunks}


def test_draw_holds_what_it_says(drawn: Drawn) -> None:
    assert len({chunk.row for chunk in drawn.chunks}) == 70
    assert list(drawn.pairs) == [(chunk, label.concept_id) for chunk in drawn.chunks for label in chunk.labels]
    assert drawn.shuffled
    for chunk, concept_id in drawn.shuffled:
        assert concept_id not in {label.concept_id for label in chunk.labels}
    first = {chunk.row for chunk in drawn.chunks}
    assert drawn.further
    for chunk, concept_id in drawn.further:
        assert chunk.row not in first
        assert concept_id in {label.concept_id for label in chunk.labels}
    counts = np.bincount([concept_id for _, concept_id in drawn.further])
    assert counts.max() == 1


def test_rule_tells_labels_from_shuffled_ones(corpus: AnnotatedCorpus, drawn: Drawn, rater: EmbeddedRater) -> None:
    library = corpus.library()
    found = report(rate(drawn, library, rater), library, SETTINGS, mean_interval)
    assert "embedded judge" in found["judge"]
    assert found["labels"]["mean_ci95"][0] > found["shuffled"]["mean_ci95"][1], "well apart from chance"
    assert found["labels"]["share_2_ci95"][0] > found["shuffled"]["share_2_ci95"][1]
    assert found["chunks"]["num_drawn"] == 70
    assert found["num_unrated"] == 0


def test_rule_finds_a_library_with_wrong_names_out(corpus: AnnotatedCorpus, drawn: Drawn, rater: EmbeddedRater) -> None:
    """Every card gets the next one's name and description: labels fall to what shuffled ones have."""
    cards = corpus.library().cards
    wrong = ConceptLibrary(
        [
            replace(card, name=other.name, description=other.description)
            for card, other in zip(cards, cards[1:] + cards[:1], strict=True)
        ]
    )
    rated = rate(drawn, wrong, rater)
    right = rate(drawn, corpus.library(), rater)
    assert np.mean(rated.pairs) < np.mean(right.pairs) - 0.5
    assert np.mean(rated.pairs >= 2) < 0.35


def test_rule_rates_a_tenth_of_random_pairs_2_or_more(
    corpus: AnnotatedCorpus, drawn: Drawn, rater: EmbeddedRater
) -> None:
    """The scale is made from these very pairs, so the shares hold but for ties and the rounding of quantiles."""
    pairs = [
        (chunk.text, card)
        for card in corpus.library().cards
        for chunk in drawn.chunks
        if card.concept_id not in {label.concept_id for label in chunk.labels}
    ]
    ratings = rater.rate([text for text, _ in pairs], [card for _, card in pairs])
    assert set(ratings.tolist()) <= {1.0, 2.0, 3.0, 4.0, 5.0}
    assert np.mean(ratings >= 2) == pytest.approx(0.10, abs=0.015)
    assert np.mean(ratings >= 4) == pytest.approx(0.02, abs=0.012)


def test_a_small_sample_is_compared_with_as_many_passages_as_a_large_one(run: Path) -> None:
    few = draw(AnnotatedCorpus.open(run / "annotated"), RelevanceSettings(sample=10))
    assert (len(few.chunks), len(few.reference)) == (10, NUM_REFERENCE)
    assert few.reference[:10] == few.chunks
    ratings = EmbeddedRater(minilm(), few.reference).rate(
        [chunk.text for chunk, _ in few.further],
        [AnnotatedCorpus.open(run / "annotated").library().card("known", concept) for _, concept in few.further],
    )
    assert not np.isnan(ratings).any()


def test_rule_needs_passages_to_compare_with(drawn: Drawn) -> None:
    with pytest.raises(CorpusError, match="needs 50 passages to compare with, there are 49"):
        EmbeddedRater(minilm(), drawn.chunks[:49])


def chunk_of(row: int, document: str, *concepts: int) -> Chunk:
    labels = tuple(Label(concept_id, 1.0, ()) for concept_id in concepts)
    return Chunk(row, f"{document}:{row}", document, 0, 1, f"text {row}", labels, "s", "cc0", "t", "d", "train")


def test_figures_worked_out_by_hand() -> None:
    """Chunk 0: 4 and 1; chunk 1: 2; chunk 2: no label; chunk 3: no rating. Concept 0: 4, 2, 5; concept 1: 1 and 1."""
    a, b, c, d = chunk_of(0, "x", 0, 1), chunk_of(1, "x", 0), chunk_of(2, "y"), chunk_of(3, "z", 1)
    e = chunk_of(4, "w", 0, 1)
    pairs = ((a, 0), (a, 1), (b, 0), (d, 1))
    drawn = Drawn((a, b, c, d), pairs, ((e, 0), (e, 1)), ((b, 1), (d, 0)), (a, b, c, d, e))
    ratings = Ratings("hand", drawn, np.array([4.0, 1, 2, np.nan]), np.array([5.0, 1]), np.array([1.0, 2]))
    cards = [Card(i, "known", f"c{i}", "", "content", (), (), (), 1, 0.0, True) for i in range(2)]
    library = ConceptLibrary(cards)
    found = report(ratings, library, RelevanceSettings(min_ratings=3), mean_interval)
    assert (found["labels"]["num"], found["labels"]["mean"], found["labels"]["share_2"]) == (3, 2.3333, 0.6667)
    assert (found["chunks"]["num"], found["chunks"]["mean"], found["chunks"]["share_2"]) == (2, 2.25, 1.0)
    assert (found["chunks"]["num_drawn"], found["chunks"]["num_without_label"]) == (4, 1)
    assert (found["concepts"]["num"], found["concepts"]["mean"]) == (1, 3.6667), "concept 1 has two ratings"
    assert (found["shuffled"]["mean"], found["shuffled"]["share_2"]) == (1.5, 0.5)
    assert found["num_unrated"] == 1
    assert [(row["name"], row["num_rated"], row["mean"]) for row in concept_table(ratings, library)] == [
        ("c1", 2, 1.0),
        ("c0", 3, 3.6667),
    ]


def evaluate(annotated: Path, server: ChatServer, **more: Any) -> dict[str, Any]:
    endpoint = Endpoint(url=server.url, max_retries=0, timeout_s=5)
    return evaluate_relevance(annotated, BY_LLM, mean_interval, endpoint=endpoint, **more)


def test_language_model_rates(run: Path, server: ChatServer, tmp_path: Path) -> None:
    found = evaluate(run / "annotated", server, out=tmp_path / "out")
    assert found["judge"] == "language model m"
    assert found["labels"]["mean"] > found["shuffled"]["mean"]
    assert found["verdicts"] == {"answered": len({json.dumps(sent["messages"]) for sent in server.requests})}
    assert read_manifest(tmp_path / "out", "runs").inputs["annotated"].id == read_manifest(run / "annotated").id
    asked = len(server.requests)
    assert evaluate(run / "annotated", server, out=tmp_path / "out") == found
    assert len(server.requests) == asked, "it is done"


def test_language_model_that_dies_is_gone_on_with(run: Path, server: ChatServer, tmp_path: Path) -> None:
    server.script = lambda q, n: Act(hangs_up=True) if n >= 20 else by_name(q, n)
    with pytest.raises(RunFailed, match="run the same command again to go on"):
        evaluate(run / "annotated", server, out=tmp_path / "broken")
    before = len(server.requests)
    server.script = by_name
    found = evaluate(run / "annotated", server, out=tmp_path / "broken")
    undisturbed = evaluate(run / "annotated", server, out=tmp_path / "whole")
    assert found == undisturbed
    assert read_manifest(tmp_path / "broken").id == read_manifest(tmp_path / "whole").id
    assert before < len(server.requests)
    assert len(server.requests) - before < 2 * found["verdicts"]["answered"], "what was kept is not asked again"


def test_unusable_answers_are_counted_and_left_out(run: Path, server: ChatServer, tmp_path: Path, capsys: Any) -> None:
    server.script = lambda q, n: Act('[/b] {"relevance": 6}') if n % 20 == 7 else by_name(q, n)
    found = evaluate(run / "annotated", server, answers=tmp_path / "a.jsonl", say=say)
    assert 'malformed (the first: "[/b] {"relevance": 6}")' in capsys.readouterr().err
    assert found["verdicts"]["malformed"] == found["num_unrated"] > 0
    assert found["labels"]["num"] + found["shuffled"]["num"] < sum(found["verdicts"].values())


@pytest.mark.parametrize(
    ("changes", "endpoint", "message"),
    [
        ({"judge": "endpoint"}, None, "needs a server and a model: --endpoint.url"),
        ({"judge": "endpoint", "llm": {"model": "m"}}, "http://x", "name --out DIR or --answers FILE"),
        ({"llm": {"model": "m"}}, None, "the judge is the embedded one; add --judge endpoint"),
    ],
)
def test_half_named_judge_is_one_line(run: Path, changes: dict[str, Any], endpoint: str | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        evaluate_relevance(
            run / "annotated",
            RelevanceSettings.parse(changes),
            mean_interval,
            endpoint=Endpoint(url=endpoint) if endpoint else None,
        )


def command(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["atlas", *words])
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_command_names_the_judge(run: Path, server: ChatServer, tmp_path: Path, capsys: Any) -> None:
    config = tmp_path / "llm.yaml"
    config.write_text(f"endpoint: {{url: '{server.url}', max_retries: 0}}\nllm: {{model: fine}}\nper_concept: 0\n")
    flags = [
        "--judge",
        "endpoint",
        "--sample",
        "20",
        "--shuffled",
        "9",
        "--config",
        str(config),
        "--llm.model",
        "finer",
    ]
    assert command("evaluate", str(run / "annotated"), "--answers", str(tmp_path / "a.jsonl"), *flags) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("relevance 1–5 by language model finer\n")
    assert "answered by finer" in captured.err
    assert {sent["model"] for sent in server.requests} == {"finer"}


def test_command_uses_an_edited_prompt(run: Path, server: ChatServer, tmp_path: Path, capsys: Any) -> None:
    assert command("prompts", str(tmp_path / "mine")) == 0
    path = tmp_path / "mine" / "relevance.md"
    path.write_text(path.read_text("utf-8").replace("You judge whether", "Say whether"), "utf-8")
    assert command("prompts", str(tmp_path / "mine"), "--json") == 0
    assert json.loads(capsys.readouterr().out.partition("\n{")[2].join(["{", ""])) == {"written": []}
    flags = ["--judge", "endpoint", "--sample", "20", "--per_concept", "0", "--shuffled", "0", "--llm.model", "m"]
    flags += ["--endpoint.url", server.url, "--prompts", str(tmp_path / "mine"), "--json"]
    assert command("evaluate", str(run / "annotated"), "--answers", str(tmp_path / "a.jsonl"), *flags) == 0
    assert json.loads(capsys.readouterr().out)["judge"] == "language model m"
    assert server.requests[0]["messages"][0]["content"].startswith("Say whether a concept")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--judge", "endpoint"], "needs a server and a model"),
        (["--judge", "endpoint", "--endpoint.url", "localhost"], "must begin with http"),
        (["--endpoint.url", "http://x", "--endpoint.timeout", "3"], "did you mean 'timeout_s'"),
        (["--endpoint.api_key", "k"], "keys do not belong in files or flags"),
        (
            ["--judge", "endpoint", "--endpoint.url", "http://x", "--endpoint.api_key_env", "NO_SUCH"],
            "NO_SUCH is not set",
        ),
        (["--judge", "endpoint", "--llm.model", "m", "--llm.temprature", "0"], "did you mean 'temperature'"),
        (["--sampel", "3"], "did you mean 'sample'"),
        (["--sample", "500", "--pool", "100"], "sample is 500, but the pool it is drawn from 100; raise pool"),
        (["--answers", "a.jsonl"], "a.jsonl: the embedded judge keeps no answers; leave --answers out"),
    ],
)
def test_wrong_flags_are_one_line(run: Path, flags: list[str], message: str, capsys: Any) -> None:
    assert command("evaluate", str(run / "annotated"), *flags) == 2
    assert message in " ".join(capsys.readouterr().err.split())
