"""The build that `vitrail atlas edit` tells of: its flags give the settings the atlas was built with."""

import shlex
import shutil
from pathlib import Path

import pytest

from vitrail.artifacts import Stage
from vitrail.atlas import AtlasSettings
from vitrail.atlas.llm import PLACEHOLDERS, builtin_text
from vitrail.cli.endpoints import split_endpoint
from vitrail.cli.main import main
from vitrail.cli.output import parse_overrides


def test_told_build_has_the_settings_of_the_language_model(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of these only the model used to be told: the build it led to asked otherwise, and found other concepts."""
    prompts = tmp_path / "my prompts"
    prompts.mkdir()
    for name in PLACEHOLDERS:
        (prompts / f"{name}.md").write_text(builtin_text(name).replace("You ", "You, "), encoding="utf-8")
    flags = {
        "num_concepts": 16,
        "starter": False,
        "tagger": "endpoint",
        "llm.model": "a model",
        "llm.temperature": None,
        "llm.structured": "none",
        "llm.extra": {"chat_template_kwargs": {"enable_thinking": False}},
    }
    settings = AtlasSettings.load(overrides=split_endpoint(flags, None, prompts)[1])
    with Stage(tmp_path / "atlas", "atlas", settings.model_dump(mode="json"), {}).write() as writing:
        shutil.copytree(run / "atlas", writing.dir, dirs_exist_ok=True, ignore=shutil.ignore_patterns("manifest.json"))
    decisions = tmp_path / "decisions.yaml"
    with pytest.raises(SystemExit) as ended:
        main(["atlas", "edit", str(tmp_path / "atlas"), "add", "own", "--phrase", "x", "--decisions", str(decisions)])
    assert ended.value.code == 0
    words = shlex.split(capsys.readouterr().out.partition("vitrail atlas build CORPUS ")[2])
    told = parse_overrides(words)
    assert (told.pop("prompts"), told.pop("out"), told.pop("decisions")) == ("FOLDER", "DIR", str(decisions))
    assert AtlasSettings.load(overrides=split_endpoint(told, None, prompts)[1]) == settings
