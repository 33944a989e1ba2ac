"""Small capability probes during training: multiple choice by likelihood (§9.4: capabilities fell unseen).

One probe is made of the held-out text itself: which of four continuations follows this beginning? Others are files of
questions. A choice is scored by the mean log-probability of its tokens after the context: under `ar` exactly; under
`cdlm` with all of its tokens masked at once, which is not a likelihood but falls and rises with what the model knows,
and costs one forward. Chance is one over the number of choices.

Letters: `c` choices of a question, `T` tokens.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from pydantic import Field, ValidationError
from torch import Tensor

from vitrail.corpus import jsonl_lines
from vitrail.errors import ConfigError, CorpusError
from vitrail.model import ConceptLM, ModelConfig
from vitrail.packed import PackedCorpus
from vitrail.settings import Settings
from vitrail.steer import deployed_logits
from vitrail.text import Tokenizer

TEXT_PROBE = "continuation"
_CHOICES = 4


@dataclass(frozen=True)
class Question:
    """One question in tokens.

    Attributes:
        context: what is given.
        choices: possible continuations.
        gold: number of the true one.
    """

    context: tuple[int, ...]
    choices: tuple[tuple[int, ...], ...]
    gold: int


class _Item(Settings, extra="ignore"):
    """A line of a probe file."""

    query: str
    choices: tuple[str, ...] = Field(min_length=2)
    gold: int = Field(ge=0)


def read_probe(path: Path, tokenizer: Tokenizer, config: ModelConfig, limit: int) -> list[Question]:
    """Questions of a file.

    Args:
        path: JSON lines (plain, `.gz` or `.zst`) with `query`, `choices` and `gold`; other fields are ignored.
        tokenizer: of the model.
        config: gives the context length; a longer question loses the beginning of its context.
        limit: how many to read.

    Returns:
        the first `limit` questions.

    Raises:
        ConfigError: the file is missing, or a line is no question; the line is named.
    """
    questions: list[Question] = []
    for number, line in _lines(path):
        if len(questions) == limit:
            break
        try:
            item = _Item.model_validate_json(line)
        except ValidationError as error:
            fault = error.errors()[0]
            raise ConfigError(
                f"{path}, line {number}: {'.'.join(map(str, fault['loc'])) or 'line'}: {fault['msg']}; a probe needs "
                "query, choices and gold in each line"
            ) from error
        if item.gold >= len(item.choices):
            raise ConfigError(f"{path}, line {number}: gold {item.gold} is none of {len(item.choices)} choices")
        choices = tuple(
            tuple(tokenizer.encode(" " + choice.strip())) if choice.strip() else () for choice in item.choices
        )
        room = config.max_length - 1 - max(map(len, choices))
        if room < 1 or not all(choices):
            raise ConfigError(f"{path}, line {number}: a choice is empty, or too long for {config.max_length} tokens")
        context = tokenizer.encode(item.query)[-room:]
        questions.append(Question((config.bos_id, *context), choices, item.gold))
    return questions


def text_questions(packed: PackedCorpus, limit: int) -> list[Question]:
    """Questions of the held-out text: the second half of a sequence among those of three others.

    Args:
        packed: its split `heldout` is read from the start.
        limit: how many.

    Returns:
        at most `limit` questions; none where fewer than four sequences are held out.
    """
    rows = min(packed.num_sequences("heldout"), max(limit, _CHOICES))
    if rows < _CHOICES or not limit:
        return []
    tokens = packed.batch("heldout", list(range(rows))).tokens.tolist()
    half = packed.length // 2
    stop = half + max(1, half // 2)
    questions = []
    for row in range(min(rows, limit)):
        # The true one's place changes with the row, so that a model which always takes the first is at chance.
        gold = row % _CHOICES
        others = [tokens[(row + 1 + offset) % rows][half:stop] for offset in range(_CHOICES - 1)]
        choices = [*others[:gold], tokens[row][half:stop], *others[gold:]]
        questions.append(Question(tuple(tokens[row][:half]), tuple(map(tuple, choices)), gold))
    return questions


@torch.no_grad()
def right_answers(model: ConceptLM, questions: Sequence[Question]) -> list[bool]:
    """Whether each question is answered with its true choice.

    Args:
        model: used as it is; one forward for each question.
        questions: of one probe.

    Returns:
        one truth value each.
    """
    return [int(_scores(model, question).argmax()) == question.gold for question in questions]


def _scores(model: ConceptLM, question: Question) -> Float[Tensor, " c"]:
    """Mean log-probability of each choice; those of one length run together, so that none sees padding."""
    scores = torch.zeros(len(question.choices))
    for size in {len(choice) for choice in question.choices}:
        which = [number for number, choice in enumerate(question.choices) if len(choice) == size]
        scores[which] = _scores_of(model, question.context, [question.choices[number] for number in which])
    return scores


def _scores_of(model: ConceptLM, context: Sequence[int], choices: Sequence[Sequence[int]]) -> Float[Tensor, " c"]:
    config, device = model.config, model.transformer.lm_head.weight.device
    ids = torch.tensor([[*context, *choice] for choice in choices], device=device)
    start, asked = len(context), ids[:, len(context) :]
    if config.backbone == "ar":
        hidden = model.hidden(ids)[:, start - 1 : -1]
    else:
        shown = ids.clone()
        shown[:, start:] = config.mask_id
        hidden = model.hidden(shown)[:, start:]
    logits = deployed_logits(model, hidden.flatten(0, 1)).view(*asked.shape, -1)
    return logits.log_softmax(-1).gather(-1, asked[..., None])[..., 0].mean(1).float().cpu()


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Lines that are not blank, with their numbers in the file."""
    try:
        yield from ((number, line) for number, line in enumerate(jsonl_lines(path), start=1) if line.strip())
    except CorpusError as error:
        raise ConfigError(f"{path}: cannot be read ({error.__cause__}); name a probe file of JSON lines") from error
