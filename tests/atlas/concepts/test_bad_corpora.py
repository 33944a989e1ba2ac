"""Corpora nobody would choose: each gives an atlas or one clear line, never a traceback or a hang."""

import json
import random
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from pydoc_data.topics import topics

import pytest

from vitrail.atlas import Annotator, AtlasSettings, ConceptLibrary, build_atlas
from vitrail.atlas.resources import Resources
from vitrail.corpus import CorpusSettings, import_corpus
from vitrail.errors import CorpusError, VitrailError

SETTINGS = AtlasSettings(num_concepts=12, max_tags=1_000, starter=False)
Build = Callable[..., ConceptLibrary]
OTHER_LANGUAGES = (
    "Der Fluss fließt durch die alte Stadt und unter der Brücke hindurch; die Straße führt zum Schloss. ",
    "人工智能 正在 改变 我们 的 生活 方式。 机器 学习 模型 需要 大量 数据。 ",
    "يتدفق النهر عبر المدينة القديمة وتحت الجسر؛ تؤدي الطريق إلى القلعة. ",
    "Река течёт через старый город и под мостом; дорога ведёт к замку. ",
    "नदी पुराने शहर से होकर और पुल के नीचे बहती है। ",
)


def corpus_of(texts: Iterable[str], folder: Path, **fields: str) -> Path:
    raw = folder / "raw.jsonl"
    with raw.open("w", encoding="utf-8") as file:
        for number, text in enumerate(texts):
            file.write(json.dumps({"text": text, "source": f"file/{number}", **fields}) + "\n")
    import_corpus([raw], folder / "corpus", CorpusSettings())
    return folder / "corpus"


@pytest.fixture
def built(cached: Resources) -> Build:
    def building(corpus: Path, out: Path, settings: AtlasSettings = SETTINGS) -> ConceptLibrary:
        build_atlas(corpus, out, settings, cached)
        Annotator.load(out).annotate(["", "\x00", "a graph of the river", "机器 学习"])
        return ConceptLibrary.load(out)

    return building


@pytest.mark.parametrize(
    "texts", [["Ten words of prose about a river and its old bridge."] * 10, ["x"], ["\x00\x01 \x07"]]
)
def test_next_to_nothing_is_one_line(tmp_path: Path, built: Build, texts: list[str]) -> None:
    """What the corpus lacks and what to do about it; no folder is left."""
    with pytest.raises(VitrailError) as caught:
        built(corpus_of((f"{i} {text}" for i, text in enumerate(texts)), tmp_path), tmp_path / "atlas")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "atlas").exists()


def test_an_empty_corpus_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(CorpusError):
        build_atlas(corpus_of([], tmp_path), tmp_path / "atlas", SETTINGS)


def test_one_topic_gives_its_parts(tmp_path: Path, built: Build) -> None:
    """Documents that all speak of the same thing, from one domain: fewer concepts, none of them the topic itself."""
    names = [name for name in sorted(topics) if len(topics[name]) > 2000][::2]
    cards = built(corpus_of((topics[name] for name in names), tmp_path, domain="python"), tmp_path / "atlas").cards
    assert 4 <= len(cards) <= SETTINGS.num_concepts
    assert len({card.name for card in cards}) == len(cards)
    assert not any("mostly in" in card.description for card in cards), "the only domain says nothing of a concept"


def test_languages_side_by_side(tmp_path: Path, built: Build) -> None:
    """English concepts are found among other scripts, and nothing breaks on a mark, a ligature or a direction."""
    english = [topics[name] for name in sorted(topics)[:40]]
    rng = random.Random(0)
    others = ["".join(rng.choices(OTHER_LANGUAGES, k=40)) for _ in range(30)]
    library = built(corpus_of([*english, *others], tmp_path), tmp_path / "atlas")
    assert library.num_known >= 4


GERMAN = (
    "Fluss Brücke Wasser Hafen Fähre Ufer Strömung Boot Schleuse",
    "Gericht Richter Anwalt Urteil Klage Gesetz Berufung Zeuge Prozess",
    "Ofen Mehl Butter Teig Brot Hefe Kuchen Bäcker Zucker",
    "Geige Orchester Konzert Melodie Komponist Klavier Dirigent Oper Chor",
    "Wald Baum Eiche Vogel Nest Specht Rehkitz Fuchs Ast",
    "Steuer Haushalt Schulden Minister Ausgaben Einnahmen Zinsen Kredit Bank",
)


def test_another_language_alone(tmp_path: Path, built: Build) -> None:
    """Clustered by the company its words keep; its function words are in no list of ours and make no concept.

    MiniLM knows little German, so with it the same corpus may end in one clear line.
    """
    rng = random.Random(1)
    texts = []
    for pool in [subject.split() for subject in GERMAN] * 24:
        pairs = [rng.sample(pool, 2) for _ in range(60)]
        texts.append(" ".join(f"Die {a} und der {b} sind hier {rng.choice(('alt', 'neu'))}." for a, b in pairs))
    corpus = corpus_of(texts, tmp_path)
    library = built(corpus, tmp_path / "atlas", SETTINGS.model_copy(update={"tag_encoder": "company"}))
    said = {word for card in library.cards for word in card.name.casefold().replace(",", "").split()}
    assert library.num_known >= 4
    assert said <= {word.casefold() for subject in GERMAN for word in subject.split()}, "function words became concepts"
    try:
        built(corpus, tmp_path / "by_meaning")
    except CorpusError as error:
        assert str(error).count("\n") == 0  # noqa: PT017 (either outcome is right, a traceback is not)


def test_control_characters_and_copies(tmp_path: Path, built: Build) -> None:
    """Every document twice, strewn with control characters, invisible marks and lone surrogates' stand-ins."""
    rng = random.Random(2)
    strange = "\x00\x07\x1b\u200b\u200e\u00ad\ufeff\ufffd\u2028"
    texts = []
    for name in sorted(topics)[:40]:
        letters = list(topics[name])
        for _ in range(len(letters) // 200):
            letters.insert(rng.randrange(len(letters)), rng.choice(strange))
        texts += ["".join(letters)] * 2
    cards = built(corpus_of(texts, tmp_path), tmp_path / "atlas").cards
    assert len(cards) >= 4
    assert all(card.name.isprintable() for card in cards)


def test_a_huge_document_on_one_line(tmp_path: Path, built: Build) -> None:
    """50 MB without a line break: the sample takes what it needs, in seconds, and the others are heard too.

    So large that cutting all of it into chunks, as if the sample had room, would pass the limit of time.
    """
    rng = random.Random(3)
    prose = " ".join(topics[name] for name in sorted(topics)).replace("\n", " ")
    words = prose.split(" ")
    huge = " ".join(rng.choices(words, k=50_000))
    huge = huge * (50_000_000 // len(huge) + 1)
    corpus = corpus_of([huge, *(topics[name] for name in sorted(topics)[:40])], tmp_path)
    started = time.perf_counter()
    settings = AtlasSettings(num_concepts=8, max_chunks=1_500, max_tags=1_000, starter=False)
    assert built(corpus, tmp_path / "atlas", settings).num_known >= 4
    assert time.perf_counter() - started < 60, "time grows with a document that the sample has no room for"


def test_a_small_corpus_gives_a_small_library(tmp_path: Path, built: Build) -> None:
    """A hundred thousand characters on five plain subjects: not the wanted number, but sound concepts."""
    subjects = (
        ("graph", "vertex", "edge", "shortest path", "spanning tree", "node"),
        ("river", "bridge", "water", "harbour", "ferry", "boat"),
        ("court", "judge", "appeal", "verdict", "lawyer", "jury"),
        ("oven", "flour", "butter", "dough", "bread", "yeast"),
        ("violin", "orchestra", "concert", "cello", "melody", "composer"),
    )
    rng = random.Random(4)
    texts = [
        " ".join(
            f"We saw the {rng.choice(subject)} of the {rng.choice(subject)} and a {rng.choice(subject)} there."
            for _ in range(14)
        )
        for subject in subjects * 24
    ]
    library = built(corpus_of(texts, tmp_path), tmp_path / "atlas", AtlasSettings(num_concepts=64, starter=False))
    assert 4 <= library.num_known <= 10
