"""The static page of an annotated corpus: files that open from a disk, without a server and without a network.

`index.html` holds style, scripts and the summary; `cards/*.js` and `documents/*.js` are read when they are needed.
They are scripts and not JSON because a page opened from a disk may load the one and not the other. Corpus text
reaches the page as text only: the policy allows one inline script and one style, by their hashes.
"""

import base64
import hashlib
import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from vitrail.artifacts import Manifest, Stage, read_manifest
from vitrail.atlas.view.gather import CARDS_A_SHARD, DOCUMENTS_A_SHARD, PageData, PageSettings, gather
from vitrail.atlas.view.layout import resolved

KIND = "page"
_SCRIPTS = (
    "tools.js",
    "shards.js",
    "hues.js",
    "card.js",
    "places.js",
    "map.js",
    "tree.js",
    "documents.js",
    "sources.js",
    "search.js",
    "main.js",
)


def write_page(annotated: Path, out: Path, settings: PageSettings) -> Manifest:
    """Write the static page of an annotated corpus (kind `page`).

    Args:
        annotated: the annotated corpus.
        out: directory to be made; open `index.html` in it.
        settings: what to show.

    Returns:
        the manifest; counts `concepts`, `chunks`, `documents` (shown in full).

    Raises:
        ArtifactError: an input is not what it should be, or `out` is something else.
        ConfigError: UMAP is asked for and not installed.
        RunFailed: the disk is full.
    """
    # What `auto` means changes when UMAP is installed: a page made before that is another one.
    settings = settings.model_copy(update={"layout": resolved(settings.layout)})
    stage = Stage(out, KIND, {**settings.model_dump(), "template": _template_hash()}, {"annotated": annotated})
    if stage.is_done:
        return read_manifest(out, KIND)
    with stage.write() as writing:
        data = gather(annotated, settings)
        (writing.dir / "index.html").write_text(render(data), encoding="utf-8", errors="replace")
        _write_shards(writing.dir, "cards", data.cards, CARDS_A_SHARD)
        _write_shards(writing.dir, "documents", data.documents, DOCUMENTS_A_SHARD)
        counts = data.summary["counts"]
        writing.counts.update(concepts=counts["concepts"], chunks=counts["chunks"], documents=len(data.documents))
    return read_manifest(out, KIND)


def render(data: PageData) -> str:
    """The page itself, without its shards.

    Args:
        data: what it shows.

    Returns:
        the HTML document.
    """
    style, script = _read("page.css"), "\n".join(_read(name) for name in _SCRIPTS)
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(_read("page.html.j2")).render(
        summary=data.summary,
        policy=_policy(style, script),
        style=Markup(style),
        script=Markup(script),
        payload=Markup(_plain_json(data.summary)),
    )


def _write_shards(folder: Path, name: str, entries: Sequence[dict[str, Any]], size: int) -> None:
    (folder / name).mkdir()
    for number, first in enumerate(range(0, len(entries), size)):
        text = f'addShard("{name}", {number}, {_plain_json(entries[first : first + size])});\n'
        (folder / name / f"{number:05d}.js").write_text(text, encoding="utf-8", errors="replace")


def _plain_json(value: Any) -> str:
    """JSON that no reader of HTML can take for markup."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _policy(style: str, script: str) -> str:
    def source(text: str) -> str:
        return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"

    # `file:` for the shards of a page on a disk, 'self' for the same page behind a web server.
    return (
        f"default-src 'none'; script-src {source(script)} 'self' file:; style-src {source(style)}; "
        "base-uri 'none'; form-action 'none'"
    )


def _read(name: str) -> str:
    return (files("vitrail.atlas.view") / "page" / name).read_text(encoding="utf-8")


def _template_hash() -> str:
    """Which template: a page made by another one is made anew."""
    texts = (_read(name) for name in ("page.html.j2", "page.css", *_SCRIPTS))
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]
