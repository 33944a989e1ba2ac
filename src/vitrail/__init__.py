"""Language models that are interpretable by construction: train, explain, steer and serve them.

    import vitrail
    model = vitrail.load("runs/demo/model")
    answer = model.generate("The economy of France", steer=[vitrail.Steer("exports", +1.0)])
    why = answer.explain(index="runs/demo/index")

The names below are loaded when first used: `vitrail --help` then needs no tensor library, and the
command line can set the OpenMP variables before PyTorch reads them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitrail.api import Generation, LoadedModel, Prompt, load
    from vitrail.errors import VitrailError
    from vitrail.steer import Steer

__all__ = ["Generation", "LoadedModel", "Prompt", "Steer", "VitrailError", "load"]

_HOMES = {
    "Generation": "vitrail.api",
    "LoadedModel": "vitrail.api",
    "Prompt": "vitrail.api",
    "Steer": "vitrail.steer",
    "VitrailError": "vitrail.errors",
    "load": "vitrail.api",
}


def __getattr__(name: str) -> Any:
    if name == "compat":
        return import_module("vitrail.compat")
    if name not in _HOMES:
        raise AttributeError(f"module 'vitrail' has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)
