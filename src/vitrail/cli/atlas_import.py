"""`vitrail atlas import`: a user's own labels become an atlas, an atlas release becomes an annotated corpus."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from vitrail.artifacts import Manifest, read_json
from vitrail.atlas import AtlasSettings
from vitrail.atlas.imports import REPORT_NAME, LabelColumns, check_lines, import_release, load_map
from vitrail.atlas.imports.own_atlas import import_labels
from vitrail.atlas.resources import Resources
from vitrail.cli.endpoints import split_endpoint
from vitrail.cli.output import Json, Overrides, described, emit, parse_overrides, working
from vitrail.errors import ConfigError

Columns = Annotated[Path | None, Parameter(help="YAML file: where a release keeps what; default: the built-in map")]


def import_source(
    source: Path,
    *overrides: Overrides,
    out: Path,
    columns: Columns = None,
    encode: bool = False,
    concept: str | None = None,
    text: str | None = None,
    separator: str | None = None,
    json: Json = False,
) -> None:
    """Read labels that exist: a table of concept and text becomes an atlas, a release's folder an annotated corpus.

    Example: `vitrail atlas import labels.csv --out runs/atlas`

    Args:
        source: a table of labels (.csv, .tsv, .jsonl, .parquet), or the folder of an atlas release.
        overrides: settings of the atlas that a table becomes; `--endpoint.url` names a server of embeddings.
        out: directory to make.
        columns: of a release: YAML file with the lines of the column map that differ.
        encode: of a release: give every chunk a MiniLM vector, so that it can be indexed by meaning.
        concept: of a table: column of the concept; several in one cell are parted by the separator; default: concept.
        text: of a table: column of the text; default: text.
        separator: of a table: what parts several concepts in one cell; default: a semicolon.
        json: print one JSON object.
    """
    flags = {"concept": concept, "text": text, "separator": separator}
    named = {flag: value for flag, value in flags.items() if value is not None}
    if source.is_dir():
        if named:
            raise ConfigError(
                f"--{next(iter(named))} is for a table of labels; "
                "--columns takes a file that says where a release keeps what"
            )
        if overrides:
            raise ConfigError(f"{overrides[0]}: a release brings its own labels, so there are no settings to give")
        manifest, report = _release(source, out, columns, encode)
    else:
        if columns is not None or encode:
            raise ConfigError(
                "--columns and --encode are for a release's folder; a table of labels has --concept and --text"
            )
        endpoint, values = split_endpoint(parse_overrides(overrides), None, None)
        settings = AtlasSettings.load(overrides=values)
        columns_of_table = LabelColumns.parse(named, where="flags")
        with working("fitting the annotator to the labels"):
            manifest, report = import_labels(source, out, columns_of_table, settings, Resources(endpoint=endpoint)), []
    result = {"id": manifest.id, "kind": manifest.kind, "counts": manifest.counts, "checks": report}
    emit(result, json, "\n".join([described(out, manifest.counts), *check_lines(report)]))


def _release(source: Path, out: Path, columns: Path | None, encode: bool) -> tuple[Manifest, list[dict[str, object]]]:
    with working("importing the release"):
        manifest = import_release(source, out, load_map(columns), encode=encode)
    return manifest, read_json(out / REPORT_NAME)
