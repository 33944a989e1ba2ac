"""Where a concept lies: the tokens that it raises and the concepts beside it.

All embeddings are taken less the mean of their head, since the rows of a head share a part that says nothing
of the single concept. Rows are read by the slab, so a head of a hundred thousand concepts needs no more
memory than a small one.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.api import LoadedModel
from vitrail.serve.library_schemas import Neighbour, RaisedToken
from vitrail.steer import Head, concept_contrast, concept_head, mean_row

_SLAB = 4096
_HEADS: tuple[Head, ...] = ("known", "discovered")


def top_tokens(model: LoadedModel, head: Head, concept_id: int, limit: int) -> list[RaisedToken]:
    """Tokens that a concept raises most.

    Args:
        model: the model.
        head: of the concept.
        concept_id: its row.
        limit: how many.

    Returns:
        tokens with their logits, largest first; control tokens are left out.
    """
    tokenizer, weight = model.tokenizer, model.network.transformer.lm_head.weight
    with torch.inference_mode():
        scores = (weight @ concept_contrast(model.network, head, concept_id)).float()
        scores[list(tokenizer.special_ids)] = -torch.inf
        best = scores[: tokenizer.vocab_size].topk(min(limit, tokenizer.vocab_size - len(tokenizer.special_ids)))
    return [
        RaisedToken(id=token, text=tokenizer.token_text(token), score=score)
        for score, token in zip(best.values.tolist(), best.indices.tolist(), strict=True)
    ]


def neighbours(model: LoadedModel, head: Head, concept_id: int, limit: int) -> list[Neighbour]:
    """Concepts of both heads that lie closest.

    Args:
        model: the model.
        head: of the concept.
        concept_id: its row.
        limit: how many.

    Returns:
        concepts by cosine, closest first; the concept itself is left out.
    """
    found: list[tuple[float, Head, int]] = []
    with torch.inference_mode():
        direction = _unit(concept_contrast(model.network, head, concept_id)[None])[0]
        for other in _HEADS:
            found += _closest(model, other, direction, limit + 1)
    found.sort(key=lambda entry: (-entry[0], entry[1] != "known", entry[2]))
    others = [entry for entry in found if entry[1:] != (head, concept_id)][:limit]
    return [
        Neighbour(head=near, concept_id=row, name=model.library.card(near, row).name, cosine=cosine)
        for cosine, near, row in others
    ]


def _closest(
    model: LoadedModel, head: Head, direction: Float[Tensor, " D"], limit: int
) -> list[tuple[float, Head, int]]:
    concepts = concept_head(model.network, head)
    listed = {card.concept_id for card in model.library.cards if card.head == head}
    mean, best = mean_row(concepts), list[tuple[float, Head, int]]()
    for start in range(0, concepts.num_concepts, _SLAB):
        rows = slice(start, min(start + _SLAB, concepts.num_concepts))
        cosines = (_unit(concepts.embedding(rows) - mean) @ direction).tolist()
        best += [(cosine, head, row) for row, cosine in enumerate(cosines, start) if row in listed]
        best = sorted(best, key=lambda entry: -entry[0])[:limit]
    return best


def _unit(rows: Float[Tensor, "n D"]) -> Float[Tensor, "n D"]:
    wide = rows.float()
    return torch.nn.functional.normalize(wide, dim=-1)
