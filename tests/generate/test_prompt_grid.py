"""On the grid of the prompt the cached engine writes what the release's uncached loop writes, token for token."""

import itertools

import pytest
import torch

from vitrail.compat import ReferenceOptions, ReferenceSteering, reference_generation, relu_suppression
from vitrail.compat import steering_direction as direction_of
from vitrail.generate import Sampling, generate
from vitrail.model import ConceptLM, ModelConfig, init_model
from vitrail.steer import SteerPlan

BLOCK, V, LAYERS = 5, 41, 3
MASK = V - 1


def _model(use_residual: bool) -> ConceptLM:
    config = ModelConfig(
        vocab_size=V,
        num_layers=LAYERS,
        num_heads=2,
        num_kv_heads=1,
        width=12,
        max_length=64,
        block=BLOCK,
        use_residual=use_residual,
        num_concepts=7,
        num_discovered=11,
        discovered_rank=3,
        top_k_known=3,
        top_k_known_features=3,
        top_k_discovered=4,
        pad_id=V - 2,
        # The release may sample the start of a document, we never do: here it is the same as its end.
        bos_id=V - 3,
        eos_id=V - 3,
        eoc_id=V - 4,
        mask_id=MASK,
    )
    model = init_model(config, 1).double().eval()
    with torch.no_grad():
        model.transformer.tok_emb.weight.mul_(20)
    return model


@pytest.mark.parametrize("use_residual", [True, False])
@pytest.mark.parametrize("is_steered", [False, True])
# Without a prompt all positions of the first block are exactly tied, and rounding alone would decide.
@pytest.mark.parametrize("num_prompt", range(1, 2 * BLOCK + 1))
@torch.no_grad()
def test_the_prompt_grid_is_that_of_the_release(num_prompt: int, is_steered: bool, use_residual: bool) -> None:
    model = _model(use_residual)
    for (num_blocks, steps), guidance in itertools.product([(1, BLOCK), (3, 2), (2, 7)], [0.0, 1.5]):
        prompt = torch.randint(0, V - 4, (num_prompt,), generator=torch.Generator().manual_seed(num_prompt)).tolist()
        steering, plan = None, None
        if is_steered:
            steering = ReferenceSteering(
                concept_ids=(2, 5), target=3.0, is_normalized=False, layer=2, schedule="fixed", relu_strengths={3: 2.0}
            )
            penalty = relu_suppression(model, {3: 2.0}).double()
            plan = SteerPlan(3.0 * direction_of(model, (2, 5)).double(), 2, penalty, "")
        expected = reference_generation(
            model,
            torch.tensor([prompt], dtype=torch.long),
            ReferenceOptions(
                max_new_tokens=num_blocks * BLOCK,
                steps=num_blocks * steps,
                top_p=0.0,
                temperature=0.0,
                repetition_penalty=1.3,
                use_entropy_sampling=False,
                cfg_scale=guidance,
            ),
            steering=steering,
        )
        sampling = Sampling(
            max_new_tokens=num_blocks * BLOCK,
            steps_per_block=steps,
            repetition_penalty=1.3,
            guidance=guidance,
            grid="prompt",
            allowed_specials=("eoc",),
        )
        (trace,) = generate(model, [prompt], sampling, [plan])
        assert [*prompt, *trace.token_ids] == expected.tokens
        assert [sorted(c.positions) for c in trace.commits] == [sorted(c.positions) for c in expected.commits]
