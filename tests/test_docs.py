"""The documentation says what the code does: commands, settings, messages, figures, links, examples."""

import doctest
import importlib
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from cyclopts import App
from pydantic import BaseModel

import vitrail
from vitrail.cli.main import app
from vitrail.settings import Settings
from vitrail.train import TrainSettings

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
WRITTEN = [page for page in PAGES if page.name != "commands.md"]
by_name = pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.stem)

_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`([^`\n]+)`")


@cache
def source() -> dict[Path, str]:
    """Every module of the package, with strings that are split over lines joined again."""
    joined = re.compile(r"\"\n\s*f?\"")
    return {path: joined.sub("", path.read_text("utf-8")) for path in (ROOT / "src").rglob("*.py")}


def commands(place: App, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every command and group of the command line."""
    for name in place:
        if not name.startswith("-"):
            yield (*above, name)
            yield from commands(place[name], (*above, name))


def settings_classes() -> dict[str, set[type[BaseModel]]]:
    """All settings classes of the package, by name; two rooms may use one name."""
    for module in pkgutil.walk_packages(vitrail.__path__, "vitrail."):
        importlib.import_module(module.name)
    found: dict[str, set[type[BaseModel]]] = {}
    waiting: list[type[BaseModel]] = [Settings]
    while waiting:
        model = waiting.pop()
        found.setdefault(model.__name__, set()).add(model)
        waiting += model.__subclasses__()
    return found


def test_commands_page_is_current(tmp_path: Path) -> None:
    """The committed page is what the script writes today; run scripts/commands_page.py to renew it."""
    page = tmp_path / "commands.md"
    subprocess.run([sys.executable, ROOT / "scripts" / "commands_page.py", page], check=True, timeout=300)
    assert page.read_text("utf-8") == (DOCS / "commands.md").read_text("utf-8")


def test_every_command_has_a_section() -> None:
    headings = re.findall(r"^## `vitrail ?(.*)`$", (DOCS / "commands.md").read_text("utf-8"), re.MULTILINE)
    assert sorted(headings) == sorted(["", *(" ".join(words) for words in commands(app))])


@by_name
def test_commands_named_exist(page: Path) -> None:
    known = {words[0] for words in commands(app)}
    groups = {words[0]: words[1] for words in commands(app) if len(words) == 2}
    for line in re.findall(r"(?:^|`)vitrail ([a-z][^`\n]*)", page.read_text("utf-8"), re.MULTILINE):
        words = tuple(line.split())
        assert words[0] in known, f"{page.name}: vitrail {line}"
        if words[0] in groups and len(words) > 1 and words[1].isalpha() and words[1].islower():
            assert words[:2] in set(commands(app)), f"{page.name}: vitrail {line}"


@by_name
def test_flags_named_exist(page: Path) -> None:
    """Options of commands and settings alike stand on the commands page; `--debug` and `--help` are everywhere."""
    known = set(re.findall(r"--[a-z][\w.-]*", (DOCS / "commands.md").read_text("utf-8"))) | {"--debug", "--group.field"}
    known |= {"--nproc-per-node", "--no-python"}  # of torchrun
    for script in (ROOT / "experiments").glob("*.py"):
        known |= set(re.findall(r'add_argument\("(--[\w-]+)"', script.read_text("utf-8")))
    named = {flag.rstrip(".") for flag in re.findall(r"(?<![\w-])--[a-z][\w.-]*", page.read_text("utf-8"))}
    assert named <= known, f"{page.name}: {sorted(named - known)}"


def test_every_settings_field_named_exists() -> None:
    classes = settings_classes()
    text = "\n".join(page.read_text("utf-8") for page in [*PAGES, ROOT / "CHANGELOG.md"])
    for name, field in re.findall(r"\b([A-Z]\w*Settings)\b(?:\(|\.)(\w+)", text):
        assert any(field in model.model_fields for model in classes[name]), f"{name}.{field}"
    for name in re.findall(r"\b([A-Z]\w*Settings)\b", text):
        assert name in classes, name


@by_name
def test_training_settings_named_exist(page: Path) -> None:
    """Dotted settings such as `optim.matrix_rate`, with or without dashes."""
    groups = "|".join(name for name in TrainSettings.model_fields)
    for path in re.findall(rf"(?<![\w./-])(?:--)?((?:{groups})(?:\.[a-z]\w*)+)(?![\w/(])", page.read_text("utf-8")):
        if path.split(".")[-1] in {"md", "json", "safetensors", "npy"} or page.name == "metrics.md":
            continue
        model: type[BaseModel] = TrainSettings
        for part in path.split("."):
            assert part in model.model_fields, f"{page.name}: {path}"
            model = _group(model, part)


def _group(model: type[BaseModel], field: str) -> type[BaseModel]:
    annotation = model.model_fields[field].annotation
    kinds = [annotation, *getattr(annotation, "__args__", ())]
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), BaseModel)


def test_every_message_is_in_the_code() -> None:
    """Messages quoted in errors.md: their fixed parts stand in one module, in this order."""
    text = (DOCS / "errors.md").read_text("utf-8")
    assert len(re.findall(r"^### `", text, re.MULTILINE)) > 20
    quoted = [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", text)]
    for message in (span for span in quoted if len(span.split()) > 3 and not span.startswith("vitrail")):
        parts = [part.strip(" :;,'") for part in message.split("…")]
        parts = [part for part in parts if len(part) > 4]
        assert parts, message
        assert any(_holds(code, parts) for code in source().values()), message


def _holds(code: str, parts: list[str]) -> bool:
    at = 0
    for part in parts:
        at = code.find(part, at)
        if at < 0:
            return False
    return True


def test_every_figure_named_is_in_the_code() -> None:
    """First cells of the tables of metrics.md name keys of summary.json."""
    text = (DOCS / "metrics.md").read_text("utf-8")
    code = "\n".join(source().values())
    cells = re.findall(r"^\| (`[^|]+) \|", text, re.MULTILINE)
    keys = {key for cell in cells for name in _CODE.findall(cell) for key in name.split(".")}
    assert len(keys) > 60
    missing = sorted(key for key in keys if not re.search(rf"\b{key}\b", code) and not _is_built(key, code))
    assert not missing


def _is_built(key: str, code: str) -> bool:
    """Keys that the code puts together from a prefix and a name, such as `hsic_discovered`."""
    heads = ("hsic_", "cka_", "relative_drop_", "ci95_")
    return any(key.startswith(head) and f'f"{head}{{' in code for head in heads)


@by_name
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8")):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        place = page.parent / name if name else page
        assert place.exists(), f"{page.name}: {target}"
        if anchor:
            assert anchor in anchors(place), f"{page.name}: {target}"


def anchors(page: Path) -> set[str]:
    """The anchors that Markdown renderers make of headings."""
    headings = re.findall(r"^#+ (.+)$", _FENCE.sub("", page.read_text("utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@by_name
def test_files_named_exist(page: Path) -> None:
    """Files of the repository, such as `configs/train.yaml`."""
    for name in re.findall(r"\b(?:configs|scripts|docs|benchmarks|src)/[\w./-]*\w", page.read_text("utf-8")):
        assert (ROOT / name).exists(), f"{page.name}: {name}"


@by_name
def test_pages_are_in_the_map(page: Path) -> None:
    assert page.name == "index.md" or f"({page.name})" in (DOCS / "index.md").read_text("utf-8")


def test_examples_are_right() -> None:
    for page in WRITTEN:
        done = doctest.testfile(str(page), module_relative=False, encoding="utf-8")
        assert not done.failed, page.name
    assert doctest.testfile(str(DOCS / "how-it-works.md"), module_relative=False, encoding="utf-8").attempted > 5


def test_configs_are_all_named() -> None:
    index = (DOCS / "index.md").read_text("utf-8")
    for config in (ROOT / "configs").glob("*.yaml"):
        assert f"configs/{config.name}" in index
        TrainSettings.load(config)
