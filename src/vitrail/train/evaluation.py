"""What is measured during a run, and on which rank: losses, interpretability, steering, capabilities (§7, §9.4).

Ranks share the held-out batches, in equal numbers, since they run their forwards together; sums are added up over
ranks. Probes, alignment and steering are small and run everywhere.
"""

from functools import partial

from vitrail.atlas import ConceptLibrary
from vitrail.metrics import alignment_share, count_tokens
from vitrail.packed import PackedCorpus
from vitrail.train.distributed import Root, World
from vitrail.train.heldout import batches_of, finish, sums
from vitrail.train.probes import TEXT_PROBE, Question, read_probe, right_answers, text_questions
from vitrail.train.settings import SteeringSettings, TrainSettings
from vitrail.train.steering_phase import lifted_tokens
from vitrail.train.steering_probe import calibrated_scales, probe_steering

_ALIGNED_CONCEPTS, _COUNTED_SEQUENCES = 64, 5_000


class Evaluation:
    """The held-out evaluation of a run; every call measures the same."""

    def __init__(
        self,
        root: Root,
        packed: PackedCorpus,
        settings: TrainSettings,
        world: World,
        library: ConceptLibrary | None,
    ) -> None:
        """Read probes and count tokens once.

        Args:
            root: holds the model.
            packed: its split `heldout` is measured on.
            settings: what to measure.
            world: the ranks.
            library: names and words of the known concepts; None measures no alignment.

        Raises:
            ConfigError: a probe file cannot be read.
        """
        self._root, self._model, self._packed, self._world = root, root.model, packed, world
        self._settings, self._library = settings, library
        self._questions = self._read_questions()
        num_concepts = root.model.known_head.num_concepts
        self._aligned = _evenly(num_concepts, _ALIGNED_CONCEPTS) if library is not None else []
        self._steered = _evenly(num_concepts, settings.heldout.steering_concepts)
        if self._aligned:
            self._token_counts = count_tokens(packed, limit=_COUNTED_SEQUENCES)
        if self._steered:
            self._lifted = lifted_tokens(packed, SteeringSettings().lifted_tokens, _COUNTED_SEQUENCES)

    def run(self) -> dict[str, float]:
        """Measure the model as it is.

        Returns:
            figures of `heldout.finish`; `probe_<name>`: share of questions answered; with concepts `alignment`: share
            of concepts' top tokens among their characteristic words (the embedded judge); with `steering_concepts`
            those of `steering_probe.probe_steering`. Nothing where no text is held out.
        """
        if not self._packed.num_sequences("heldout"):
            return {}
        found = self._losses() | self._answers()
        if self._aligned:
            found["alignment"] = self._root.look(self._alignment)
        if self._steered:
            found |= self._root.look(self._steering)
        return found

    def _losses(self) -> dict[str, float]:
        heldout, world = self._settings.heldout, self._world
        batches = batches_of(self._packed, heldout, world.rank, world.size)
        how, seed = self._settings.loss.aggregation, self._settings.seed
        return finish(world.total(self._root.look(lambda: sums(self._model, batches, heldout.noise, how, seed))))

    def _answers(self) -> dict[str, float]:
        found = {}
        for name, questions in self._questions.items():
            is_right = self._root.look(partial(right_answers, self._model, questions))
            found[f"probe_{name}"] = sum(is_right) / len(is_right)
        return found

    def _alignment(self) -> float:
        assert self._library is not None
        tokenizer = self._packed.tokenizer()
        return alignment_share(self._model, tokenizer, self._library, self._token_counts, self._aligned)

    def _steering(self) -> dict[str, float]:
        steering, seed = self._settings.steering or SteeringSettings(), self._settings.seed
        layer = steering.layer or max(1, self._model.config.num_layers // 2)
        target = steering.target_logit_change
        scales = calibrated_scales(self._model, self._packed, layer, target, self._steered, seed)
        return probe_steering(self._model, self._packed, layer, scales, self._lifted, seed)

    def _read_questions(self) -> dict[str, list[Question]]:
        heldout, limit = self._settings.heldout, self._settings.heldout.probe_items
        found = {TEXT_PROBE: text_questions(self._packed, limit)}
        for path in heldout.probes:
            name = path.name.partition(".")[0]
            found[name] = read_probe(path, self._packed.tokenizer(), self._model.config, limit)
        return {name: questions for name, questions in found.items() if questions}


def _evenly(count: int, limit: int) -> list[int]:
    """At most `limit` of 0..count-1, evenly spaced."""
    num = min(count, limit)
    return [place * count // num for place in range(num)]
