"""`vitrail atlas build`."""

import os
from pathlib import Path
from typing import Any

from vitrail.atlas import AtlasSettings, build_atlas
from vitrail.atlas.concepts.decisions import load_decisions
from vitrail.atlas.concepts.finding import fates
from vitrail.atlas.resources import Resources
from vitrail.cli.endpoints import say, split_endpoint
from vitrail.cli.output import Json, Overrides, described, emit, parse_overrides, working


def build(
    corpus: Path,
    *overrides: Overrides,
    out: Path,
    decisions: Path | None = None,
    config: Path | None = None,
    prompts: Path | None = None,
    cache: Path | None = None,
    json: Json = False,
) -> None:
    """Find the concepts of a corpus: tags, clusters, cards, taxonomy, annotator.

    Example: `vitrail atlas build runs/corpus --out runs/atlas --num_concepts 1024`

    Every setting is a flag too; docs/commands.md lists them with their defaults. `--num_concepts` is a wish: a small or
    uniform corpus gives fewer. `--endpoint.url` and `--llm.model` name a language model, for `--tagger endpoint` and
    `--namer endpoint`.

    Args:
        corpus: a corpus directory.
        overrides: settings of the atlas; `--endpoint.url`, `--llm.model` and the like for a language model.
        out: directory to make.
        decisions: file of your decisions about concepts (`vitrail atlas edit` writes it).
        config: YAML file of settings, with the group `endpoint` for a server; see `configs/atlas/endpoint.yaml`.
        prompts: folder with edited prompts.
        cache: folder that keeps vectors and answers for later builds; `~/.cache/vitrail` if not given.
        json: print one JSON object.
    """
    endpoint, values = split_endpoint(parse_overrides(overrides), config, prompts, wanted=("tags", "concept"))
    if decisions is not None:
        values["decisions"] = load_decisions(decisions).model_dump(mode="json")
    settings = AtlasSettings.load(overrides=values)
    resources = Resources(
        cache=cache or _cache(os.environ),
        endpoint=endpoint,
        say=say,
    )
    with working("building the atlas"):
        manifest = build_atlas(corpus, out, settings, resources)
    text = described(out, manifest.counts) + _fewer(out, settings.num_concepts)
    emit({"id": manifest.id, "counts": manifest.counts}, json, text)


def _fewer(atlas: Path, wanted: int) -> str:
    """A line that says why there are fewer found concepts than wanted; empty where there are enough."""
    found = fates(atlas)
    if found[""] >= wanted:
        return ""
    dropped = ", ".join(f"{reason} {count:,}" for reason, count in found.most_common() if reason)
    return f"\n{found['']:,} of {wanted:,} wanted concepts found; clusters dropped: {dropped or 'none'}"


def _cache(environment: Any) -> Path:
    base = environment.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    return Path(base) / "vitrail"
