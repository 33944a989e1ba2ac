from pathlib import Path

import pytest
import torch
from torch.nn import functional

from vitrail.errors import ArtifactError
from vitrail.explain.transducer import fit_transducer, load_transducer, save_transducer


def pairs(seed: int, n: int = 640) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    bend = torch.randn(11, 17, generator=torch.Generator().manual_seed(99))
    states = 3 + torch.randn(n, 11, generator=generator)
    return states, functional.normalize(torch.tanh((states - 3) @ bend), dim=-1)


def test_it_finds_new_states_near_their_targets() -> None:
    transducer = fit_transducer(*pairs(0), hidden_width=64, seed=0)
    states, targets = pairs(1)
    cosines = (transducer(states) * targets).sum(-1)
    strangers = (transducer(states) * targets.roll(1, 0)).sum(-1)
    assert cosines.mean() > 0.7
    assert abs(float(strangers.mean())) < 0.1


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        save_transducer(fit_transducer(*pairs(0, 100), hidden_width=13, seed=seed), tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert (tmp_path / "a").read_bytes() != (tmp_path / "c").read_bytes()


def test_saved_is_loaded(tmp_path: Path) -> None:
    transducer = fit_transducer(*pairs(0, 100), hidden_width=13, seed=0)
    save_transducer(transducer, tmp_path / "transducer.safetensors")
    states, _ = pairs(2, 5)
    assert torch.equal(load_transducer(tmp_path / "transducer.safetensors")(states), transducer(states))


def test_a_truncated_file_is_a_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "transducer.safetensors"
    save_transducer(fit_transducer(*pairs(0, 100), hidden_width=13, seed=0), path)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ArtifactError, match="build the index again"):
        load_transducer(path)
