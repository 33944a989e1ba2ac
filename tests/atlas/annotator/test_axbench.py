"""Own concepts against truth that did not make them: a few of axbench_concept10, with MiniLM."""

import gzip
import json
import os
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from vitrail.atlas.annotator import MiniLMEncoder
from vitrail.atlas.annotator.fit import Evidence, FitInputs, fit_annotator
from vitrail.atlas.concepts.own import OwnConcept
from vitrail.atlas.concepts.space import encode
from vitrail.atlas.sample import Chunks
from vitrail.atlas.settings import AtlasSettings
from vitrail.atlas.tags.tagging import tag_chunks

SHARED = os.environ.get("VITRAIL_SHARED")
NUM_CONCEPTS, NUM_EXAMPLES, NUM_JUDGED, ORIGIN = 3, 8, 8, "2b_l20"


@pytest.mark.skipif(SHARED is None, reason="VITRAIL_SHARED names no folder with the evaluation sets")
def test_concepts_from_a_description_and_eight_examples() -> None:
    path = Path(SHARED or "") / "data" / "eval" / "axbench_concept10.jsonl.gz"
    with gzip.open(path, "rt", encoding="utf-8") as file:
        texts = [t for t in map(json.loads, file) if t["origin"] == ORIGIN and t["concept_id"] < NUM_CONCEPTS]
    train = [t for t in texts if t["split"] == "train"]
    own = []
    for number in range(NUM_CONCEPTS):
        mine = [t for t in train if t["concept_id"] == number]
        examples = tuple(t["output"] for t in mine)[:NUM_EXAMPLES]
        own.append(OwnConcept(name=str(number), description=mine[0]["concept"], examples=examples))
    corpus = [t["output"] for t in train if t["category"] == "negative"][:60]
    tagging = tag_chunks(corpus, 1_000)
    encoded = encode(
        tagging, Chunks(corpus, np.arange(len(corpus)), np.zeros(len(corpus), np.int64), [""]), 0, "company"
    )
    none = Evidence.none(len(tagging.table.tags), encoded.space.vectors.shape[1])
    inputs = FitInputs(corpus, [], tagging.table.tags, encoded, none, own)
    fitted = fit_annotator(inputs, MiniLMEncoder(), AtlasSettings(num_concepts=4))
    judged = []
    for number in range(NUM_CONCEPTS):
        for category in ("positive", "negative"):
            wanted = ("eval", number, category)
            fitting = [t for t in texts if (t["split"], t["concept_id"], t["category"]) == wanted]
            judged += fitting[:NUM_JUDGED]
    odds = fitted.annotator.log_odds([t["output"] for t in judged], range(NUM_CONCEPTS))
    found = []
    for number in range(NUM_CONCEPTS):
        rows = [i for i, t in enumerate(judged) if t["concept_id"] == number]
        found.append(roc_auc_score([judged[i]["category"] == "positive" for i in rows], odds[rows, number]))
    assert np.mean(found) > 0.75, found
