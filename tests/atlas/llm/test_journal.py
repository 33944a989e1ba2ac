"""The journal survives kills, tears and strangers."""

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitrail.atlas.llm import Journal, Reply, key_of
from vitrail.errors import ConfigError

TEXTS = st.text(max_size=40)


def reply(text: str) -> Reply:
    return Reply(text, "stop", "", 1, 2)


@given(texts=st.lists(TEXTS, max_size=8))
@settings(deadline=None)
def test_what_was_put_is_found_again(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> None:
    path = tmp_path_factory.mktemp("journal") / "a.jsonl"
    keys = [key_of({"n": i}) for i in range(len(texts))]
    with Journal(path) as journal:
        for key, text in zip(keys, texts, strict=True):
            journal.put(key, reply(text))
        assert [journal.get(key) for key in keys] == [reply(text) for text in texts]
    with Journal(path) as journal:
        assert [journal.get(key) for key in keys] == [reply(text) for text in texts]
        assert journal.get(key_of({"n": "other"})) is None
        assert journal.num_damaged == 0


@given(cut=st.integers(1, 60))
@settings(deadline=None)
def test_torn_last_line_costs_one_answer(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    """Whatever is left of the last line, the lines before it and those written later are whole."""
    path = tmp_path_factory.mktemp("journal") / "a.jsonl"
    first, second, third = (key_of({"n": i}) for i in range(3))
    with Journal(path) as journal:
        journal.put(first, reply("one"))
        journal.put(second, reply("two"))
    os.truncate(path, path.stat().st_size - cut)
    with Journal(path) as journal:
        assert journal.get(second) is None or cut == 1
        journal.put(third, reply("three"))
    with Journal(path) as journal:
        assert journal.get(first) == reply("one")
        assert journal.get(third) == reply("three")


def test_damaged_lines_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with Journal(path) as journal:
        journal.put(key_of({"n": 0}), reply("one"))
    with path.open("ab") as stored:
        stored.write(b'\xff\xfe\n{"key": "zz"}\n[]\n{"key": "00", "unknown": 1}\n\n5\n' + b"[" * 100_000 + b"\n")
    with Journal(path) as journal:
        journal.put(key_of({"n": 1}), reply("two"))
        assert journal.num_damaged == 7
    with Journal(path) as journal:
        assert journal.get(key_of({"n": 0})) == reply("one")
        assert journal.get(key_of({"n": 1})) == reply("two")


@pytest.mark.parametrize("content", ['{"text": "a", "source": "b"}\n', "5\n", "notes", "{\n}\n"])
def test_file_of_something_else_is_left_as_it_is(tmp_path: Path, content: str) -> None:
    """`--answers corpus.jsonl` used to add answers to somebody's corpus, or to end with a traceback."""
    path = tmp_path / "corpus.jsonl"
    path.write_text(content)
    with pytest.raises(ConfigError, match=r"corpus.jsonl: holds no answers .*; name a new file, or a journal"):
        Journal(path)
    assert path.read_text() == content


def test_what_is_no_file_is_refused() -> None:
    with pytest.raises(ConfigError, match="/dev/null: is no file"):
        Journal(Path("/dev/null"))


def test_journal_torn_in_its_first_line_is_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with Journal(path) as journal:
        journal.put(key_of({"n": 0}), reply("one"))
    os.truncate(path, path.stat().st_size - 9)
    for _ in range(2):  # the torn line ends with a line break the second time
        with Journal(path) as journal:
            assert (journal.num_damaged, journal.get(key_of({"n": 0}))) == (1, None)


def test_two_journals_on_one_file(tmp_path: Path) -> None:
    """Two processes that append by turns: neither loses a line, each finds its own."""
    path = tmp_path / "a.jsonl"
    with Journal(path) as a, Journal(path) as b:
        for i in range(20):
            (a if i % 3 else b).put(key_of({"n": i}), reply(str(i)))
        assert b.get(key_of({"n": 18})) == reply("18")
        assert a.get(key_of({"n": 19})) == reply("19")
    with Journal(path) as journal:
        assert [journal.get(key_of({"n": i})) for i in range(20)] == [reply(str(i)) for i in range(20)]


def test_key_does_not_depend_on_the_order_of_fields() -> None:
    assert key_of({"a": 1, "b": [2, 3]}) == key_of({"b": [2, 3], "a": 1})
    assert key_of({"a": 1}) != key_of({"a": "1"})


def test_place_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="name a file that can be written"):
        Journal(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="name a file that can be written"):
        Journal(tmp_path / "file" / "a.jsonl")
