"""The checkpoint specification a second time: numpy, fp64, every table in full, one position at a time.

It shares no code with the package. Names are those of the release. Only the rotary angles are taken from torch,
since the specification wants them in fp32 and two libraries round powers differently.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

Array = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]
Edits = Mapping[tuple[int, int], Sequence[tuple[int, float]]]
"""(row, position) -> concept and new weight; −1 is an empty slot."""


def concept_settings(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The concept keys of either layout."""
    return dict(raw["concept"] if raw.get("concept") else raw)


def tensor_shapes(raw: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Every tensor of a checkpoint, the LM head included even where it is tied (§3)."""
    width, layers, vocab = raw["n_embd"], raw["n_layers"], raw["vocab_size"]
    head = width // raw["n_head"]
    kv = raw["n_kv_heads"] or raw["n_head"]
    inner = raw["intermediate_size"] or raw["mlp_ratio"] * width
    fc = 2 * inner if raw["mlp_type"] == "swiglu" else inner
    shapes: dict[str, tuple[int, ...]] = {}

    def norm(name: str, size: int) -> None:
        shapes[f"{name}.weight"] = (size,)
        if not raw["use_rms_norm"]:
            shapes[f"{name}.bias"] = (size,)

    def linear(name: str, out: int, into: int) -> None:
        shapes[f"{name}.weight"] = (out, into)
        if raw["use_bias"]:
            shapes[f"{name}.bias"] = (out,)

    shapes["transformer.tok_emb.weight"] = shapes["transformer.lm_head.weight"] = (vocab, width)
    for layer in range(layers):
        block = f"transformer.blocks.{layer}"
        norm(f"{block}.ln_1", width)
        norm(f"{block}.ln_2", width)
        linear(f"{block}.attn.c_attn", width + 2 * kv * head, width)
        linear(f"{block}.attn.c_proj", width, width)
        if raw["use_qk_norm"]:
            norm(f"{block}.attn.q_norm", head)
            norm(f"{block}.attn.k_norm", head)
        linear(f"{block}.mlp.c_fc", fc, width)
        linear(f"{block}.mlp.c_proj", width, inner)
    norm("transformer.ln_f", width)
    if raw["interpretable"]:
        shapes |= _head_shapes(concept_settings(raw), width)
    return shapes


def _head_shapes(concept: Mapping[str, Any], width: int) -> dict[str, tuple[int, ...]]:
    def padded(count: int) -> int:
        return int(np.ceil(count / concept["pad_multiple"])) * int(concept["pad_multiple"])

    known, rank = padded(concept["n_concepts"]), concept["factorize_rank"]
    shapes: dict[str, tuple[int, ...]] = {"known_head.concept_embedding.weight": (known, width)}
    if concept["use_attention_known"]:
        shapes["known_head.concept_query_projection.weight"] = (width, width)
    else:
        shapes["known_head.concept_predictor.weight"] = (known, width)
    if not concept["use_unknown"]:
        return shapes
    unknown = padded(concept["n_unknown_concepts"])
    is_attention, is_factorized = concept["use_attention_unknown"], concept["factorize_unknown"]
    if is_factorized:
        shapes["unknown_head.embedding_coef.weight"] = (unknown, rank)
        shapes["unknown_head.embedding_basis.weight"] = (width, rank)
    else:
        shapes["unknown_head.concept_embedding.weight"] = (unknown, width)
    if is_attention:
        shapes["unknown_head.concept_query_projection.weight"] = (width, width)
    elif is_factorized:
        shapes["unknown_head.predictor_down.weight"] = (rank, width)
        shapes["unknown_head.predictor_up.weight"] = (unknown, rank)
    else:
        shapes["unknown_head.concept_predictor.weight"] = (unknown, width)
    return shapes


def sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


_ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "gelu": lambda x: np.asarray(0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))),
    "relu": lambda x: np.maximum(x, 0),
    "silu": lambda x: x * sigmoid(x),
}


@dataclass(frozen=True)
class Head:
    """One concept head with its tables in full: rows beyond the count are cut off."""

    kind: str
    count: int
    embedding: Array
    logits_of: Callable[[Array], Array]
    k: int | None
    k_features: int | None
    by_logit: bool
    has_defect: bool

    def logits(self, state: Array) -> Array:
        return np.clip(self.logits_of(state), -15, 15)

    def ranked(self, logits: Array, k: int) -> Ids:
        value = logits if self.by_logit else sigmoid(logits)
        return np.argsort(-value, kind="stable")[:k]

    def features(self, state: Array) -> Array:
        logits = self.logits(state)
        if self.k is None or self.k_features is None:
            return sigmoid(logits) @ self.embedding
        chosen = self.ranked(logits, self.k_features)
        return sigmoid(logits[chosen]) @ self.embedding[chosen]

    def reported(self, state: Array) -> tuple[Ids, Array]:
        logits = self.logits(state)
        if self.k is None or self.k_features is None:
            ids = self.ranked(logits, 64 if self.kind == "unknown" else 0)
        else:
            ids = self.ranked(logits, self.k_features)
            if self.k_features > self.k:
                ids = ids[np.argsort(-logits[ids], kind="stable")][: self.k]
        return ids, logits[ids]

    def dense_weights(self, state: Array) -> Array:
        logits = self.logits(state)
        weights = sigmoid(logits)
        if self.k is None:
            return weights
        unselected = np.setdiff1d(np.arange(self.count), self.ranked(logits, self.k))
        weights[unselected] = 0.5 if self.has_defect else 0.0
        return weights

    def set(self, state: Array, edits: Sequence[tuple[int, float]]) -> Array:
        weights = self.dense_weights(state)
        for concept in {concept for concept, _ in edits} - {-1}:
            weights[concept] = sum(value for other, value in edits if other == concept)
        return weights @ self.embedding

    def corrected(self, state: Array, edits: Sequence[tuple[int, float]]) -> Array:
        features, weights = self.features(state), sigmoid(self.logits(state))
        for concept, value in edits:
            if concept != -1:
                features = features + (value - weights[concept]) * self.embedding[concept]
        return features


class Twin:
    """A checkpoint: raw `config.json`, and tensors by released name."""

    def __init__(self, raw: Mapping[str, Any], tensors: Mapping[str, Array]) -> None:
        self.raw, self.concept, self.tensors = raw, concept_settings(raw), tensors
        self.embedding = tensors["transformer.tok_emb.weight"]
        self.lm_head = self.embedding if raw["weight_sharing"] else tensors["transformer.lm_head.weight"]
        self.known = self._known() if raw["interpretable"] else None
        self.unknown = self._unknown() if raw["interpretable"] and self.concept["use_unknown"] else None

    def hidden(self, ids: Ids, injection: tuple[Array, npt.NDArray[np.bool_], int] | None = None) -> Array:
        """Final hidden states [B T D] (§4), with a vector added after blocks n ≥ layer (§8.2)."""
        return np.stack([self._row(ids[row], row, injection) for row in range(len(ids))])

    def _row(self, ids: Ids, row: int, injection: tuple[Array, npt.NDArray[np.bool_], int] | None) -> Array:
        x = self.embedding[ids]
        for layer in range(self.raw["n_layers"]):
            block = f"transformer.blocks.{layer}"
            if self.raw["norm_order"] == "pre":
                x = x + self._attention(f"{block}.attn", self._norm(f"{block}.ln_1", x))
                x = x + self._mlp(f"{block}.mlp", self._norm(f"{block}.ln_2", x))
            else:
                x = x + self._norm(f"{block}.ln_1", self._attention(f"{block}.attn", x))
                x = x + self._norm(f"{block}.ln_2", self._mlp(f"{block}.mlp", x))
            if injection is not None and layer + 1 >= injection[2]:
                x = x + injection[1][row][:, None] * injection[0][row]
        return self._norm("transformer.ln_f", x)

    def _norm(self, name: str, x: Array) -> Array:
        weight = self.tensors[f"{name}.weight"]
        if self.raw["use_rms_norm"]:
            return np.asarray(weight * x / np.sqrt((x**2).mean(-1, keepdims=True) + self.raw["norm_eps"]))
        centred = x - x.mean(-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
        return np.asarray(weight * scaled + self.tensors[f"{name}.bias"])

    def _linear(self, name: str, x: Array) -> Array:
        y = x @ self.tensors[f"{name}.weight"].T
        return y + self.tensors[f"{name}.bias"] if self.raw["use_bias"] else y

    def _attention(self, name: str, x: Array) -> Array:
        heads = self.raw["n_head"]
        kv, d, length = self.raw["n_kv_heads"] or heads, self.raw["n_embd"] // heads, len(x)
        qkv = self._linear(f"{name}.c_attn", x)
        if self.raw["clip_qkv"] is not None:
            qkv = np.clip(qkv, -self.raw["clip_qkv"], self.raw["clip_qkv"])
        q, k, v = np.split(qkv, [heads * d, (heads + kv) * d], axis=-1)
        q, k, v = q.reshape(length, heads, d), k.reshape(length, kv, d), v.reshape(length, kv, d)
        if self.raw["use_qk_norm"]:
            q, k = self._norm(f"{name}.q_norm", q), self._norm(f"{name}.k_norm", k)
        if self.raw["use_rope"]:
            q, k = self._rotated(q), self._rotated(k)
        mixed = np.empty_like(q)
        for pos in range(length):
            seen = min(length, (pos // self.raw["diff_block_size"] + 1) * self.raw["diff_block_size"])
            for head in range(heads):
                group = head // (heads // kv)
                score = k[:seen, group] @ q[pos, head] / np.sqrt(d)
                share = np.exp(score - score.max())
                mixed[pos, head] = share / share.sum() @ v[:seen, group]
        return self._linear(f"{name}.c_proj", mixed.reshape(length, heads * d))

    def _rotated(self, x: Array) -> Array:
        length, _, d = x.shape
        frequency = 1.0 / self.raw["rope_base"] ** (torch.arange(0, d, 2, dtype=torch.float32) / d)
        angle = torch.outer(torch.arange(length, dtype=torch.float32), frequency)
        cos, sin = (part.numpy().astype(np.float64)[:, None, :] for part in (angle.cos(), angle.sin()))
        a, b = x[..., : d // 2], x[..., d // 2 :]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)

    def _mlp(self, name: str, x: Array) -> Array:
        u = self._linear(f"{name}.c_fc", x)
        if self.raw["mlp_type"] == "swiglu":
            half = u.shape[-1] // 2
            return self._linear(f"{name}.c_proj", _ACTIVATIONS["silu"](u[:, half:]) * u[:, :half])
        return self._linear(f"{name}.c_proj", _ACTIVATIONS[self.raw["activation"]](u))

    def _known(self) -> Head:
        concept, count = self.concept, self.concept["n_concepts"]
        k, k_features = concept["topk_known"], concept["topk_known_features"]
        embedding = self.tensors["known_head.concept_embedding.weight"][:count]
        return Head(
            kind="known",
            count=count,
            embedding=embedding,
            logits_of=self._predictor("known_head", embedding, concept["use_attention_known"], is_factorized=False),
            k=k,
            k_features=k if k_features is None else k_features,
            by_logit=concept["topk_on_logits"],
            has_defect=concept["topk_on_logits"],
        )

    def _unknown(self) -> Head:
        concept, count = self.concept, self.concept["n_unknown_concepts"]
        is_factorized = concept["factorize_unknown"]
        if is_factorized:
            coef = self.tensors["unknown_head.embedding_coef.weight"][:count]
            embedding = coef @ self.tensors["unknown_head.embedding_basis.weight"].T
        else:
            embedding = self.tensors["unknown_head.concept_embedding.weight"][:count]
        k = concept["unknown_topk"] if concept["apply_topk_to_unknown"] else None
        return Head(
            kind="unknown",
            count=count,
            embedding=embedding,
            logits_of=self._predictor("unknown_head", embedding, concept["use_attention_unknown"], is_factorized),
            k=k,
            k_features=k,
            by_logit=is_factorized or concept["topk_on_logits"],
            has_defect=concept["topk_on_logits"],
        )

    def _predictor(
        self, name: str, embedding: Array, is_attention: bool, is_factorized: bool
    ) -> Callable[[Array], Array]:
        count = len(embedding)
        if is_attention:
            projection = self.tensors[f"{name}.concept_query_projection.weight"]
            return lambda h: embedding @ (projection @ h) / np.sqrt(len(h))
        if is_factorized:
            down, up = self.tensors[f"{name}.predictor_down.weight"], self.tensors[f"{name}.predictor_up.weight"]
            return lambda h: up[:count] @ (down @ h)
        rows = self.tensors[f"{name}.concept_predictor.weight"][:count]
        return lambda h: rows @ h

    def composed(
        self,
        hidden: Array,
        known: Edits | None = None,
        unknown: Edits | None = None,
        unknown_rule: str = "dense",
    ) -> dict[str, Array]:
        """Features, correction, composed and logits (§5.2, §6), with interventions (§7)."""
        assert self.known is not None
        k_hat = self._features(self.known, hidden, known, "dense")
        parts = {"known": k_hat, "discovered": np.zeros_like(hidden), "discovered_for_lm": hidden - k_hat}
        if self.unknown is not None:
            parts["discovered"] = self._features(self.unknown, hidden, unknown, unknown_rule)
            parts["discovered_for_lm"] = parts["discovered"]
        parts["unexplained"] = hidden - (k_hat + parts["discovered"])
        if self.concept["use_epsilon_correction"] and known is None:
            parts["correction"] = hidden - (parts["discovered_for_lm"] + k_hat)
            parts["discovered_for_lm"] = parts["discovered_for_lm"] + parts["correction"]
        parts["composed"] = parts["discovered_for_lm"] + k_hat
        parts["logits"] = parts["composed"] @ self.lm_head.T
        return parts

    @staticmethod
    def _features(head: Head, hidden: Array, edits: Edits | None, rule: str) -> Array:
        out = np.empty_like(hidden)
        for row, pos in np.ndindex(hidden.shape[:2]):
            state = hidden[row, pos]
            if edits is None:
                out[row, pos] = head.features(state)
            elif rule == "dense":
                out[row, pos] = head.set(state, edits.get((row, pos), ()))
            else:
                out[row, pos] = head.corrected(state, edits.get((row, pos), ()))
        return out

    def reported(self, head: Head, hidden: Array) -> tuple[Ids, Array]:
        """Reported ids and logits at every position."""
        found = [head.reported(state) for state in hidden.reshape(-1, hidden.shape[-1])]
        ids, logits = np.stack([ids for ids, _ in found]), np.stack([logits for _, logits in found])
        return ids.reshape(*hidden.shape[:2], -1), logits.reshape(*hidden.shape[:2], -1)

    def dense(self, head: Head, hidden: Array) -> tuple[Array, Array]:
        """Logits and weights of all concepts at every position (§5.4)."""
        states = hidden.reshape(-1, hidden.shape[-1])
        logits, weights = (np.stack([of(state) for state in states]) for of in (head.logits, head.dense_weights))
        return logits.reshape(*hidden.shape[:2], -1), weights.reshape(*hidden.shape[:2], -1)
