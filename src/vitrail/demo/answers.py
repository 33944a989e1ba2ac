"""What the demo shows of its model: one answer explained, and continuations turned up and down.

Nothing is picked by hand: prompts are the beginnings of held-out chunks, drawn by seed among those that
carry a concept.
"""

from collections.abc import Iterable

import numpy as np

from vitrail.api import LoadedModel, load
from vitrail.artifacts import Stage, read_json, write_json
from vitrail.atlas import AnnotatedCorpus, Chunk
from vitrail.demo.places import Places, made_from
from vitrail.demo.plan import DemoPlan
from vitrail.eval import HEADLINE
from vitrail.generate import Sampling
from vitrail.steer import Steer

PROMPT_WORDS = 12
NUM_PAIRS = 6


def write_answers(places: Places, plan: DemoPlan) -> None:
    """Generate and explain → `explanation.json`, `pairs.json`, and the trace beside them.

    Args:
        places: the demo's directories.
        plan: its settings.
    """
    inputs = made_from(places, "model", "index", "annotated", "steering")
    sampling = Sampling(max_new_tokens=64, temperature=0.7, top_p=0.9, repetition_penalty=1.5, seed=plan.seed)
    stage = Stage(places.of("answers"), "runs", sampling.model_dump(mode="json"), inputs)
    if stage.is_done:
        return
    model = load(places.of("model"), device="cpu")
    # The gentlest operating point: stronger steering reads worse.
    strength = read_json(places.of("steering") / "steering.json")[HEADLINE]["points"][-1]["strength"]
    chunks = prompt_chunks(AnnotatedCorpus.open(places.of("annotated")).chunks(), plan.seed)
    with stage.write() as writing:
        answer = model.continue_prompt(_beginning(chunks[0]), sampling)
        answer.trace.save(places.out / "trace")
        why = answer.explain(places.of("index"))
        write_json(writing.dir / "explanation.json", why.model_dump(mode="json"))
        pairs = [_pair(model, chunk, strength, sampling) for chunk in chunks[1 : NUM_PAIRS + 1]]
        write_json(writing.dir / "pairs.json", pairs)
        writing.counts["tokens_explained"] = len(answer.token_ids)
        writing.counts["steered_prompts"] = len(pairs)


def prompt_chunks(chunks: Iterable[Chunk], seed: int) -> list[Chunk]:
    """Held-out chunks that carry a concept, one for each concept, in an order drawn by seed.

    Args:
        chunks: of the annotated corpus.
        seed: of the order.

    Returns:
        the chunks; where none carries a concept (the library does not fit the text), the longest held-out one.
    """
    heldout = [chunk for chunk in chunks if chunk.split == "heldout"]
    carrying = [chunk for chunk in heldout if chunk.labels and _is_long(chunk)]
    if not carrying:
        return sorted(heldout, key=lambda chunk: (-len(chunk.text), chunk.row))[:1]
    order = np.random.default_rng(seed).permutation(len(carrying))
    by_concept: dict[int, Chunk] = {}
    for number in order:
        chunk = carrying[number]
        by_concept.setdefault(_main_concept(chunk), chunk)
    return list(by_concept.values())


def _is_long(chunk: Chunk) -> bool:
    return len(chunk.text.split()) >= 2 * PROMPT_WORDS


def _main_concept(chunk: Chunk) -> int:
    return max(chunk.labels, key=lambda label: label.score).concept_id


def _beginning(chunk: Chunk) -> str:
    return " ".join(chunk.text.split()[:PROMPT_WORDS])


def _pair(model: LoadedModel, chunk: Chunk, strength: float, sampling: Sampling) -> dict[str, str | float]:
    concept_id, prompt = _main_concept(chunk), _beginning(chunk)
    name = model.library.card("known", concept_id).name

    def text(*steer: Steer) -> str:
        return model.continue_prompt(prompt, sampling, steer).text

    return {
        "concept": name,
        "strength": strength,
        "prompt": prompt,
        "unsteered": text(),
        "amplified": text(Steer(concept_id, strength)),
        "suppressed": text(Steer(concept_id, is_off=True)),
    }
