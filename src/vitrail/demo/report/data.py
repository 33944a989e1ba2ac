"""What the report shows: plain, frozen records that any stage can fill.

`summary` and `explanation` are the JSON documents themselves (`summary.json`, `vitrail.explanation/1`);
whatever they lack is shown as "not measured".
"""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ReportMeta(_Record):
    """The run in a few facts; None where a fact is unknown."""

    title: str = "What this model is made of"
    out: str = "runs/demo"
    machine: str = ""
    versions: dict[str, str] = {}
    seed: int = 0
    wall_s: float | None = None
    peak_rss_bytes: int | None = None
    num_params: int | None = None
    num_train_tokens: int | None = None
    num_documents: int | None = None
    num_chunks: int | None = None
    corpus_bytes: int | None = None
    num_known: int | None = None
    num_discovered: int | None = None


class ConceptCard(_Record):
    """One concept of the library; `top_tokens` are the tokens that W·K_c raises most."""

    head: Literal["known", "discovered"] = "known"
    concept_id: int
    name: str
    description: str = ""
    words: tuple[str, ...] = ()
    num_chunks: int | None = None
    examples: tuple[str, ...] = ()
    top_tokens: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """The concept's address in the page, such as `known-3`."""
        return f"{self.head}-{self.concept_id}"


class SteeringPair(_Record):
    """One prompt continued three times: as it is, with the concept turned up, and turned down."""

    concept: str
    strength: float
    prompt: str
    unsteered: str
    amplified: str
    suppressed: str
    head: Literal["known", "discovered"] = "known"


class TrainingPoint(_Record):
    """One line of the training log: tokens seen and the language loss in nats per masked token."""

    tokens: int
    loss: float | None
    stage: str = ""


class LineageEntry(_Record):
    """One artifact between the raw text and the answer, as its manifest names it."""

    kind: str
    id: str
    path: str = ""
    counts: dict[str, int] = {}


class ReportData(_Record):
    """Everything `write_report` needs.

    `summary` follows the summary.json keys, with `n` and `ci95` nested beside the figures; `explanation`
    is one `vitrail.explanation/1` document. Both may lack parts.
    """

    meta: ReportMeta
    summary: dict[str, Any]
    explanation: dict[str, Any]
    steering_pairs: tuple[SteeringPair, ...] = ()
    cards: tuple[ConceptCard, ...] = ()
    training_log: tuple[TrainingPoint, ...] = ()
    lineage: tuple[LineageEntry, ...] = ()
