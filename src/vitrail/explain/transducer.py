"""The transducer: from the model's composed states to the annotator's embedding space (§6.1.3, B.1).

An MLP with two hidden layers, fitted with a cosine loss on pairs (mean composed state of a training
chunk, the chunk's cached embedding). Embeddings are compared after their corpus mean is taken away,
since a shared direction makes all cosines alike. `n` pairs, `D` model width, `E` embedding width.
"""

from pathlib import Path

import torch
from jaxtyping import Float
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from vitrail.errors import ArtifactError

EPOCHS = 24
MIN_STEPS = 400
BATCH = 256
LEARNING_RATE = 2e-3
WEIGHT_DECAY = 0.01
DROPOUT = 0.3
MIN_DEVIATION = 1e-3


class Transducer(nn.Module):
    """Two hidden layers on whitened states; unit vectors out."""

    def __init__(self, width: int, hidden_width: int, embedding_width: int) -> None:
        """Make an unfitted transducer.

        Args:
            width: D.
            hidden_width: of both hidden layers.
            embedding_width: E.
        """
        super().__init__()
        self.mean: Tensor
        self.whitening: Tensor
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("whitening", torch.eye(width))
        self.hidden_1 = nn.Linear(width, hidden_width)
        self.hidden_2 = nn.Linear(hidden_width, hidden_width)
        self.out = nn.Linear(hidden_width, embedding_width)

    def forward(self, states: Float[Tensor, "n D"], dropout: torch.Generator | None = None) -> Float[Tensor, "n E"]:
        """Place states in the embedding space.

        Args:
            states: [n D] mean composed states.
            dropout: draws which hidden units are left out while fitting; None leaves none out.

        Returns:
            [n E] unit vectors, centred space.
        """
        x = (states - self.mean) @ self.whitening
        x = _dropped(functional.gelu(self.hidden_1(x)), dropout)
        x = _dropped(functional.gelu(self.hidden_2(x)), dropout)
        return functional.normalize(self.out(x), dim=-1)


def fit_transducer(
    states: Float[Tensor, "n D"], targets: Float[Tensor, "n E"], hidden_width: int, seed: int
) -> Transducer:
    """Fit a transducer: AdamW, cosine loss, dropout, rate falling linearly to zero.

    Args:
        states: [n D] mean composed states of training chunks, fp32.
        targets: [n E] their embeddings, unit length, centred space.
        hidden_width: of both hidden layers.
        seed: of weights and batches.

    Returns:
        the fitted transducer, in evaluation mode.

    Cost: 24 passes over the pairs, more where they are few.
    """
    generator = torch.Generator().manual_seed(seed)
    transducer = Transducer(states.shape[1], hidden_width, targets.shape[1])
    transducer.mean, transducer.whitening = states.mean(0), _whitening(states - states.mean(0))
    _initialise(transducer, generator)
    optimiser = torch.optim.AdamW(transducer.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    steps_per_epoch = -(-len(states) // BATCH)
    num_epochs = max(EPOCHS, MIN_STEPS // steps_per_epoch)
    schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.0, num_epochs * steps_per_epoch)
    for _ in range(num_epochs):
        order = torch.randperm(len(states), generator=generator)
        for start in range(0, len(states), BATCH):
            rows = order[start : start + BATCH]
            loss = 1 - (transducer(states[rows], generator) * targets[rows]).sum(-1).mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
    return transducer.requires_grad_(False).eval()


def save_transducer(transducer: Transducer, path: Path) -> None:
    """Write a transducer.

    Args:
        transducer: the fitted transducer.
        path: the safetensors file.
    """
    save_file({name: value.contiguous() for name, value in transducer.state_dict().items()}, path)


def load_transducer(path: Path) -> Transducer:
    """Read a transducer.

    Args:
        path: the safetensors file.

    Returns:
        the transducer, in evaluation mode.

    Raises:
        ArtifactError: the file is missing, truncated or holds other tensors.
    """
    try:
        tensors = load_file(path)
        hidden_width, width = tensors["hidden_1.weight"].shape
        transducer = Transducer(width, hidden_width, tensors["out.weight"].shape[0])
        transducer.load_state_dict(tensors)
    except (OSError, SafetensorError, KeyError, RuntimeError) as error:
        raise ArtifactError(f"{path}: not a readable transducer ({error}); build the index again") from error
    return transducer.requires_grad_(False).eval()


def _whitening(centred: Float[Tensor, "n D"]) -> Float[Tensor, "D D"]:
    """Directions of the states at unit variance: the few strong ones would drown what tells chunks apart."""
    variances, directions = torch.linalg.eigh(centred.T @ centred / len(centred))
    whitening: Tensor = directions / (variances.clamp(min=0).sqrt() + MIN_DEVIATION)
    return whitening.contiguous()


def _dropped(x: Tensor, generator: torch.Generator | None) -> Tensor:
    if generator is None:
        return x
    return x * (torch.rand(x.shape, generator=generator) >= DROPOUT) / (1 - DROPOUT)


def _initialise(transducer: Transducer, generator: torch.Generator) -> None:
    for layer in (transducer.hidden_1, transducer.hidden_2, transducer.out):
        nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu", generator=generator)
        nn.init.zeros_(layer.bias)
