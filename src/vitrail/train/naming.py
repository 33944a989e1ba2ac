"""Names for discovered concepts: the tokens they raise most (§6.1).

A discovered concept has no label; its row of U seen through the LM head says what it does. Rows share a
direction that raises frequent tokens, so the mean row is taken out first.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vitrail.atlas import Card
from vitrail.model import ConceptLM
from vitrail.text import Tokenizer

_NUM_WORDS = 8
_SLAB = 1024


def name_discovered(model: ConceptLM, tokenizer: Tokenizer) -> list[Card]:
    """One automatic card per discovered concept.

    Args:
        model: its discovered head and LM head.
        tokenizer: spells the tokens.

    Returns:
        cards in order of concept id; `lift` holds the centred logits of the words.
    """
    num, cards = model.unknown_head.num_concepts, []
    for start in range(0, num, _SLAB):
        values, tokens = _top_tokens(model, slice(start, min(start + _SLAB, num)), tokenizer)
        for offset, (row, ids) in enumerate(zip(values.tolist(), tokens.tolist(), strict=True)):
            words = tuple(tokenizer.token_text(token).strip() for token in ids)
            cards.append(_card(start + offset, words, tuple(row)))
    return cards


@torch.no_grad()
def _top_tokens(model: ConceptLM, slab: slice, tokenizer: Tokenizer) -> tuple[Float[Tensor, "S w"], Int[Tensor, "S w"]]:
    head = model.unknown_head
    centre = head.embedding(slice(0, min(head.num_concepts, _SLAB))).mean(0)
    logits = model.lm_logits(head.embedding(slab) - centre).float()
    spelt = torch.tensor([len(tokenizer.token_text(i).strip()) > 1 for i in range(tokenizer.vocab_size)])
    spelt[list(tokenizer.special_ids)] = False
    logits[:, ~spelt] = -torch.inf
    top = logits.topk(min(_NUM_WORDS, int(spelt.sum())), dim=1)
    return top.values, top.indices


def _card(concept_id: int, words: tuple[str, ...], lift: tuple[float, ...]) -> Card:
    return Card(
        concept_id=concept_id,
        head="discovered",
        name=" / ".join(words[:3]) + f" (discovered {concept_id})",
        description="Found by training, not named by a person; raises: " + ", ".join(words),
        kind="discovered",
        words=words,
        lift=lift,
        path=(),
        num_chunks=0,
        threshold=0.5,
        is_automatic=True,
    )
