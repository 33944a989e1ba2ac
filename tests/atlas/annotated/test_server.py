"""An atlas whose chunks are encoded by a server: `annotate` is told where it is, as `build` was."""

import json
from pathlib import Path
from pydoc_data.topics import topics

import pytest

from tests.atlas.annotator.embedding_server import WIDTH, good, serving
from vitrail.atlas import AnnotatedCorpus, AtlasSettings, build_atlas
from vitrail.atlas.llm import Endpoint
from vitrail.atlas.resources import Resources
from vitrail.cli.main import main
from vitrail.corpus import CorpusSettings, import_corpus

SETTINGS = AtlasSettings(num_concepts=8, max_tags=800, tag_encoder="company", encoder="endpoint:m", starter=False)


def test_annotating_asks_the_server_that_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a server one line says what is missing."""
    raw = tmp_path / "raw.jsonl"
    raw.write_text("".join(json.dumps({"text": topics[name], "source": name}) + "\n" for name in sorted(topics)[:40]))
    corpus, atlas, out = (tmp_path / name for name in ("corpus", "atlas", "annotated"))
    import_corpus([raw], corpus, CorpusSettings())
    words = ["atlas", "annotate", str(corpus), "--atlas", str(atlas), "--out", str(out), "--workers", "2"]
    with serving(good) as (url, requests):
        build_atlas(corpus, atlas, SETTINGS, Resources(endpoint=Endpoint(url=url)))
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == 2
        assert "encoder 'endpoint:m' asks a server, and none is named; give its address (--endpoint.url" in (
            capsys.readouterr().err
        )
        assert not out.exists()
        asked = len(requests)
        with pytest.raises(SystemExit) as ended:
            main([*words, "--endpoint.url", url])
        assert not ended.value.code, capsys.readouterr().err
        assert len(requests) > asked
    annotated = AnnotatedCorpus.open(out)
    assert annotated.embeddings().shape == (annotated.num_chunks, WIDTH)
    assert annotated.manifest.counts["labels"] > 0
