"""The embedded corpus reads like prose. A part of it is built here; the whole is built by the end-to-end test."""

import re
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

import pytest

from vitrail.corpus import embedded
from vitrail.corpus.document import Document
from vitrail.corpus.factbook import factbook_entries

MARKUP = re.compile(r">>>|``|:\w+:`|https?://|</?\w+>|\.\. \w+::|={4,}|-{4,}|\\[a-z]+\{")


@pytest.fixture(scope="module")
def documents() -> list[Document]:
    """Two packages of the standard library, and the first countries of the factbook."""

    def entries() -> Iterator[embedded._Entry]:
        for name in ("json", "logging"):
            spec = find_spec(name)
            assert spec is not None
            assert spec.origin is not None
            yield from embedded._module_entries(Path(spec.origin).parent, f"python-stdlib/{name}", "PSF-2.0")

    some = list(islice(factbook_entries(), 300))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(embedded, "factbook_entries", lambda: iter(some))
        patch.setattr(embedded, "_library_entries", entries)
        return list(embedded.embedded_documents())


def test_documents_are_prose_of_some_length(documents: list[Document]) -> None:
    assert len(documents) > 200
    lengths = [len(document.text) for document in documents]
    assert min(lengths) >= embedded.MIN_DOCUMENT_CHARS
    assert max(lengths) < 4 * embedded.FULL_DOCUMENT_CHARS
    marked = [document.source for document in documents if MARKUP.search(document.text)]
    assert len(marked) <= 0.005 * len(documents), marked[:10]


def test_documents_say_where_they_come_from(documents: list[Document]) -> None:
    sources = {document.source for document in documents}
    assert {"python-stdlib/json/decoder", "world-factbook/mauritius"} <= sources
    assert all(document.license and document.title and document.domain for document in documents)
    assert len({document.id for document in documents}) == len(documents)
    mauritius = [document for document in documents if document.source == "world-factbook/mauritius"]
    assert len(mauritius) >= 4


def test_surnames_are_not_shouted(documents: list[Document]) -> None:
    government = [d.text for d in documents if d.title == "Mauritius: Government"]
    assert len(government) == 1
    assert "Navin Ramgoolam" in government[0] or "RAMGOOLAM" not in government[0]
