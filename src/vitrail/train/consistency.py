"""Settings of a run that contradict one another, or that would have no effect: refused before anything is built."""

from vitrail.errors import ConfigError
from vitrail.model import ModelConfig
from vitrail.packed import PackedCorpus
from vitrail.train.objective import ComposeSettings, LossSettings
from vitrail.train.schedules import Curve
from vitrail.train.shape import ModelSettings


def check_consistent(model: ModelSettings, loss: LossSettings, compose: ComposeSettings, *, has_steering: bool) -> None:
    """Refuse a run whose settings contradict one another.

    Args:
        model: shape of the model.
        loss: forms of the terms.
        compose: teacher forcing, dropout, sparsity.
        has_steering: whether steering batches are asked for.

    Raises:
        ConfigError: two of them do not fit together; the line names both, and which one to change.
    """
    if model.interpretable:
        _check_kept(model, compose)
        return
    if has_steering:
        raise ConfigError(
            "steering needs concepts, and model.interpretable is false; leave steering out (--steering null)"
        )
    if compose != ComposeSettings():
        raise ConfigError(
            "compose has no effect without concepts (model.interpretable false); leave it out (--compose {})"
        )
    if loss != LossSettings(language_weight=loss.language_weight):
        raise ConfigError(
            "loss has no effect without concepts (model.interpretable false), but for language_weight; leave the rest "
            "out (--loss {})"
        )


def check_steerable(layer: int | None, config: ModelConfig, packed: PackedCorpus) -> None:
    """Refuse steering batches that would do nothing, or end the run when the first of them comes.

    Args:
        layer: from which layer on concepts are injected, if it is given.
        config: the model, new or continued.
        packed: what it is trained on.

    Raises:
        ConfigError: no concepts, no masks, no such layer, or a corpus without labels; the line says what to change.
    """
    if not config.known_count:
        raise ConfigError("steering needs concepts, and the model has none; leave steering out (--steering null)")
    if config.backbone == "ar":
        raise ConfigError(
            "steering batches inject at masked positions, which backbone ar has not; leave steering out "
            "(--steering null), or train a cdlm model"
        )
    if layer is not None and layer > config.num_layers:
        raise ConfigError(
            f"steering.layer {layer}: the model has {config.num_layers} layers; choose one of 1 to {config.num_layers}"
        )
    if not packed.manifest.counts.get("train_labels"):
        raise ConfigError(
            f"{packed.path}: its sequences carry no labels, so there is nothing to steer by; leave steering out "
            "(--steering null)"
        )


def _check_kept(model: ModelSettings, compose: ComposeSettings) -> None:
    """Top-k within what there is; only where the number of concepts is given, since otherwise the corpus decides."""
    if model.num_concepts is None:
        return
    known, discovered = model.num_concepts, round(model.discovered_ratio * model.num_concepts)
    for name, top_k, curve, count in (
        ("top_k_known", model.top_k_known, compose.top_k_known, known),
        ("top_k_discovered", model.top_k_discovered, compose.top_k_discovered, discovered),
    ):
        kept = max(top_k or 0, _highest(curve))
        if 0 < count < kept:
            which = "known" if name == "top_k_known" else "discovered"
            raise ConfigError(f"{name} {kept:g} is more than the model's {count} {which} concepts; lower it")


def _highest(curve: Curve | None) -> float:
    return max((knot[1] for knot in curve), default=0.0) if curve else 0.0
