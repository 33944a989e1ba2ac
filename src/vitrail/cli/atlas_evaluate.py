"""`vitrail atlas evaluate | prompts`."""

from pathlib import Path
from typing import Any, Literal

from vitrail.artifacts import atomic_write_bytes, make_folder
from vitrail.atlas.judge.evaluating import evaluate_relevance
from vitrail.atlas.judge.relevance import RelevanceSettings
from vitrail.atlas.llm import PLACEHOLDERS, builtin_text
from vitrail.cli.endpoints import say, split_endpoint
from vitrail.cli.output import Json, Overrides, Whole, emit, parse_overrides, working
from vitrail.metrics import mean_interval


def evaluate(
    annotated: Path,
    *overrides: Overrides,
    out: Path | None = None,
    judge: Literal["embedded", "endpoint"] | None = None,
    sample: Whole | None = None,
    config: Path | None = None,
    prompts: Path | None = None,
    answers: Path | None = None,
    json: Json = False,
) -> None:
    """Rate how well labels fit their chunks, from 1 to 5, by a language model or by a rule.

    Example: `vitrail atlas evaluate runs/annotated --sample 400 --out runs/relevance`

    A rating of 2 or more is a success. Further settings, such as `--per_concept` and `--seed`, are flags too;
    docs/commands.md lists them. `--endpoint.url` and `--llm.model` name the language model of `--judge endpoint`.

    Args:
        annotated: an annotated corpus.
        overrides: settings of the evaluation; `--endpoint.url`, `--llm.model` and the like for a language model.
        out: directory to make, with the figures, the table of concepts and every rating.
        judge: who rates: embedded (no language model) or endpoint.
        sample: chunks drawn at random.
        config: YAML file with the groups `endpoint` and `llm`; see `configs/atlas/endpoint.yaml`.
        prompts: folder with an edited `relevance.md`.
        answers: file that keeps the answers of the language model; without it they are kept beside `--out`.
        json: print one JSON object.
    """
    flags = parse_overrides(overrides)
    flags |= {key: value for key, value in {"judge": judge, "sample": sample}.items() if value is not None}
    endpoint, values = split_endpoint(flags, config, prompts, ["relevance"])
    settings = RelevanceSettings.load(overrides=values)
    with working("rating labels"):
        found = evaluate_relevance(
            annotated, settings, mean_interval, out=out, endpoint=endpoint, answers=answers, say=say
        )
    emit(found, json, _text(found))


def prompts(folder: Path, *, json: Json = False) -> None:
    """Copy the prompts into a folder, to be edited and passed back with `--prompts FOLDER`.

    Example: `vitrail atlas prompts my-prompts`

    Args:
        folder: is made; files that are there already are left as they are.
        json: print one JSON object.

    Raises:
        ArtifactError: the folder cannot be made or written to.
        RunFailed: the disk is full.
    """
    make_folder(folder)
    written = [name for name in PLACEHOLDERS if not (folder / f"{name}.md").exists()]
    for name in written:
        atomic_write_bytes(folder / f"{name}.md", builtin_text(name).encode())
    files = [str(folder / f"{name}.md") for name in written]
    emit({"written": files}, json, "\n".join(files) or f"{folder}: all prompts are there already; nothing was changed")


def _text(found: dict[str, Any]) -> str:
    lines = [f"relevance 1–5 by {found['judge']}", f"{'':10}{'mean':>5} {'95 %':>12}  {'≥ 2':>5} {'95 %':>14}  rated"]
    lines += [_line(name, found[name]) for name in ("labels", "chunks", "concepts", "shuffled")]
    lines.append(
        f"{found['chunks']['num_without_label']:,} of {found['chunks']['num_drawn']:,} chunks carry no label; "
        f"{found['num_unrated']:,} pairs without a rating; shuffled: the same passages with each other's labels"
    )
    if found["worst"]:
        lines.append("worst concepts:")
        lines += [
            f"  {row['mean']:.2f}  #{row['concept_id']:<5} {row['name']} ({row['num_rated']} rated)"
            for row in found["worst"]
        ]
    return "\n".join(lines)


def _line(name: str, figures: dict[str, Any]) -> str:
    if not figures["num"]:
        return f"{name:10}nothing rated"
    mean, share = figures["mean_ci95"], figures["share_2_ci95"]
    return (
        f"{name:10}{figures['mean']:5.2f} {mean[0]:5.2f} – {mean[1]:4.2f}  {figures['share_2']:5.1%} "
        f"{share[0]:6.1%} – {share[1]:5.1%}  {figures['num']:,}"
    )
