"""From tags to the concepts that a corpus offers: clusters, filter, merging, evidence, selection (§4.2.2)."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from vitrail.atlas.annotator.detector import Detector
from vitrail.atlas.concepts.clusters import Cluster, cluster_tags, merge_to_stability
from vitrail.atlas.concepts.geometry import unit
from vitrail.atlas.concepts.selection import Selection, select_concepts
from vitrail.atlas.concepts.space import Encoded
from vitrail.atlas.library import CLUSTERS_NAME
from vitrail.atlas.sample import MIN_CONCEPTS, Chunks, too_small
from vitrail.atlas.settings import AtlasSettings
from vitrail.atlas.tags.tagging import Tagging
from vitrail.errors import CorpusError

CLUSTERS = pa.schema(
    [
        ("tags", pa.list_(pa.string())),
        ("meaning_coherence", pa.float32()),
        ("company_coherence", pa.float32()),
        ("specificity", pa.float32()),
        ("num_chunks", pa.int64()),
        ("concept_id", pa.int32()),
        ("dropped", pa.string()),
    ]
)
"""Of `clusters.parquet`."""

DECIDED = "forbidden or changed by a decision"


@dataclass(frozen=True)
class Found:
    """The concepts of a corpus, and what was dropped on the way to them.

    Attributes:
        candidates: merged clusters; the selection chose among them.
        selection: which were kept, their thresholds and the chunks that carry them.
        detector: evidence for the kept ones, in the order of their ids.
        dropped: clusters that did not become candidates, each with the reason.
    """

    candidates: list[Cluster]
    selection: Selection
    detector: Detector
    dropped: list[tuple[Cluster, str]]

    def table(self, tags: tuple[str, ...], decided: Detector) -> pa.Table:
        """Every cluster with its fate: `clusters.parquet`.

        Args:
            tags: the n tags.
            decided: the concepts after decisions, in the order of their ids.

        Returns:
            a row a cluster; `dropped` is empty for those that became concepts.
        """
        ids = {frozenset(decided.member_ids(c).tolist()): c for c in range(len(decided.mean))}
        kept = {
            cluster: ids.get(frozenset(self.detector.member_ids(place).tolist()))
            for place, cluster in enumerate(self.selection.kept)
        }
        rows: list[tuple[Cluster, str, int | None, int | None]] = []
        for i, cluster in enumerate(self.candidates):
            changed = DECIDED if i in kept and kept[i] is None else ""
            rows.append((cluster, self.selection.reasons[i] or changed, kept.get(i), int(self.selection.num_chunks[i])))
        rows += [(cluster, reason, None, None) for cluster, reason in self.dropped]
        return pa.table(
            {
                "tags": [[tags[t] for t in c.members] for c, *_ in rows],
                "meaning_coherence": [c.meaning for c, *_ in rows],
                "company_coherence": [c.company for c, *_ in rows],
                "specificity": [c.specificity for c, *_ in rows],
                "num_chunks": [n for *_, n in rows],
                "concept_id": [concept for _, _, concept, _ in rows],
                "dropped": [reason for _, reason, _, _ in rows],
            },
            schema=CLUSTERS,
        )


def fates(atlas: Path) -> Counter[str]:
    """What became of the clusters of an atlas.

    Args:
        atlas: an atlas directory.

    Returns:
        how many were dropped for each reason (all that were merged first as one); under the empty text, how many
        became concepts.
    """
    reasons = pq.read_table(atlas / CLUSTERS_NAME, columns=["dropped"])["dropped"].to_pylist()
    return Counter(reason.partition(",")[0] for reason in reasons)


def find_concepts(encoded: Encoded, tagging: Tagging, chunks: Chunks, settings: AtlasSettings) -> Found:
    """Find the concepts of a sample of chunks.

    Args:
        encoded: tags and chunks as vectors.
        tagging: of the chunks.
        chunks: the sample.
        settings: sizes, limits, seed.

    Returns:
        the concepts.

    Raises:
        CorpusError: fewer than four can be found.
    """
    space = encoded.space
    clusters = cluster_tags(space, settings.num_concepts, settings.seed)
    merging = merge_to_stability(space, [cluster for cluster in clusters if not cluster.fault], settings.seed)
    candidates = merging.kept
    if len(candidates) < MIN_CONCEPTS:
        raise CorpusError(too_small(len(chunks.texts), len(candidates), settings))
    centroids = unit(np.stack([space.mean(cluster.members) for cluster in candidates]))
    members = [cluster.members for cluster in candidates]
    detector = Detector.fit(space.vectors, centroids, members, tagging.given, encoded.rows)
    tags = [[tagging.table.tags[tag] for tag in detector.member_ids(i)] for i in range(len(candidates))]
    scores = detector.scores(encoded.weighted, encoded.rows)
    selection = select_concepts(candidates, tags, scores, chunks.documents, settings)
    if len(selection.kept) < MIN_CONCEPTS:
        raise CorpusError(too_small(len(chunks.texts), len(selection.kept), settings))
    unsound = [(cluster, cluster.fault) for cluster in clusters if cluster.fault]
    return Found(candidates, selection, detector.only(selection.kept), [*unsound, *merging.dropped])
