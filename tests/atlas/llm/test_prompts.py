"""Prompts are files: the package's, and a user's copies."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitrail.atlas.llm import PLACEHOLDERS, Prompt, TaggingModel, builtin_text, load_prompts, parse_prompt
from vitrail.errors import ConfigError


@pytest.mark.parametrize("name", PLACEHOLDERS)
def test_copy_of_the_package_is_the_package(tmp_path: Path, name: str) -> None:
    (tmp_path / f"{name}.md").write_text(builtin_text(name), encoding="utf-8")
    assert load_prompts(tmp_path, [name]) == {name: Prompt.builtin(name)}


def test_edit_changes_the_settings(tmp_path: Path) -> None:
    (tmp_path / "tags.md").write_text("Tag it.\n---\nHere: {text}\n", encoding="utf-8")
    edited = TaggingModel.parse({"model": "m", **load_prompts(tmp_path, ["tags", "concept"])})
    assert edited.tags == Prompt(instruction="Tag it.", question="Here: {text}")
    assert edited.model_dump() != TaggingModel(model="m").model_dump()
    assert TaggingModel.parse(edited.model_dump()) == edited


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Tag it: {text}", "an instruction, a line '---' and a question"),
        ("Tag it.\n---\n", "one of them is missing"),
        ("---\n{text}", "one of them is missing"),
        ("Tag it.\n---\nHere: {txt}", r"the question has no \{text\}"),
    ],
)
def test_broken_prompt_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "tags.md").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        load_prompts(tmp_path, ["tags"])


def test_folder_without_prompts_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no prompts there; wanted tags.md or concept.md"):
        load_prompts(tmp_path, ["tags", "concept"])
    (tmp_path / "tags.md").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot be read as UTF-8"):
        load_prompts(tmp_path, ["tags"])


@given(text=st.text() | st.sampled_from(["{name}", "{text}", "{", "\0name\0", "\0"]), name=st.text(max_size=9))
def test_what_is_filled_in_is_not_filled_again(text: str, name: str) -> None:
    prompt = parse_prompt("relevance", 'As {"a": 1}.\n---\n{name}|{description}|{text}|{"b": 2}', "here")
    system, user = prompt.filled(name=name, description="{text}", text=text)
    assert system["content"] == 'As {"a": 1}.'
    assert user["content"] == f'{name}|{{text}}|{text}|{{"b": 2}}'
