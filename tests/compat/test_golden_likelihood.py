"""Recorded Monte-Carlo likelihoods: the draws of a seed, and the estimate from them."""

from pathlib import Path

import pytest
import torch

from tests.compat.golden import arrays, records
from vitrail.compat import draw_masks, log_likelihood
from vitrail.model import ConceptLM

NAMES = ["likelihood_0", "likelihood_1"]


@pytest.mark.parametrize("name", NAMES)
def test_draws_of_a_seed(directory: Path, model: ConceptLM, name: str) -> None:
    wanted = arrays(directory / f"{name}.npz")
    length = len(wanted["continuation"])
    for entry in records(directory / f"{name}.json"):
        generator = torch.Generator().manual_seed(entry["torch_seed"])
        sizes = wanted[f"{entry['name']}_chunk_sizes"].tolist()
        got = torch.cat([draw_masks(length, size, generator) for size in sizes])
        noisy = wanted[f"{entry['name']}_noisy"][:, -length:]
        assert torch.equal(got, noisy == model.config.mask_id)
        torch.testing.assert_close(got.float().mean(-1), wanted[f"{entry['name']}_p_mask"])


@pytest.mark.parametrize("name", NAMES)
def test_log_likelihoods(directory: Path, model: ConceptLM, name: str) -> None:
    """To a millionth: fp32 sums of several hundred nats keep no more."""
    row = arrays(directory / f"{name}.npz")
    for entry in records(directory / f"{name}.json"):
        got = log_likelihood(
            model,
            row["context"] if entry["context_used"] else row["context"][:0],
            row["continuation"],
            generator=torch.Generator().manual_seed(entry["torch_seed"]),
            num_samples=entry["mc_num"],
            batch_size=entry["mc_batch_size"],
            cfg_scale=entry["cfg_scale"],
        )
        assert got == pytest.approx(entry["loglikelihood"], rel=1e-6), entry["name"]
