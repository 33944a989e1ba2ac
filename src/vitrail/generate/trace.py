"""Traces: a generation with everything needed to explain it.

Each commit remembers which tokens one forward filled in, with the logits of that forward. The row as it
was then (the snapshot) follows from the prompt and the commits before. Saved as an artifact of kind
`trace`: `trace.json` for what is discrete, `trace.safetensors` for numbers.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import torch
from jaxtyping import Int
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from vitrail.artifacts import Manifest, Stage, read_json, read_manifest, write_json
from vitrail.errors import ArtifactError
from vitrail.generate.sampling import Sampling
from vitrail.settings import Settings
from vitrail.steer import SteerPlan

_JSON, _TENSORS = "trace.json", "trace.safetensors"

Ranked = tuple[tuple[int, float], ...]
"""Ids with a number each, largest first."""

_TOLD = ("alternatives", "known", "discovered")


@dataclass(frozen=True)
class Commit:
    """Tokens that one forward filled in, most confident first.

    Attributes:
        step: number of the forward within its request, from 0.
        positions: absolute positions in the row.
        tokens: ids put there.
        logits: the model's logit of each token in that forward, steering in force, before guidance and any penalty.
        logprobs: its log-probability by the same logits at temperature 1, in nats.
        row_length: length of the row in that forward: `cdlm` the end of the current block, `ar` the position itself.
        request: number of the request in its call of `generate`; not part of the content.
        alternatives: for each position the most likely ids with their log-probabilities, where the sampling
            asks for them.
        known: for each position the most active known concepts with their activations, where asked for.
        discovered: the same of discovered concepts.
    """

    step: int
    positions: tuple[int, ...]
    tokens: tuple[int, ...]
    logits: tuple[float, ...]
    logprobs: tuple[float, ...]
    row_length: int
    request: int = field(default=0, compare=False)
    alternatives: tuple[Ranked, ...] = ()
    known: tuple[Ranked, ...] = ()
    discovered: tuple[Ranked, ...] = ()


@dataclass(frozen=True)
class Trace:
    """One generation.

    Attributes:
        prompt_ids: the prompt; masked positions are gaps that were filled in.
        token_ids: generated ids in the order of the text, gaps first; a stop id is kept as the last one.
        commits: in the order in which they happened. Commits behind a stop id are kept, since later
            snapshots hold them, but are not in `token_ids`.
        sampling: how it was sampled.
        plan: the steering in force, or None.
        mask_id: id of masked positions.
        model_id: artifact id of the model, or empty.
    """

    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    commits: tuple[Commit, ...]
    sampling: Sampling
    plan: SteerPlan | None
    mask_id: int
    model_id: str = ""

    @property
    def steer(self) -> str:
        """The steering request as text; empty where nothing was steered."""
        return "" if self.plan is None else self.plan.text

    @cached_property
    def positions(self) -> tuple[int, ...]:
        """Absolute position of each generated token."""
        gaps = [pos for pos, token in enumerate(self.prompt_ids) if token == self.mask_id]
        start = len(self.prompt_ids)
        return (*gaps, *range(start, start + len(self.token_ids) - len(gaps)))

    @property
    def row(self) -> tuple[int, ...]:
        """The whole text: the prompt with its gaps filled, and what follows it."""
        filled = dict(zip(self.positions, self.token_ids, strict=True))
        length = max(len(self.prompt_ids), *(pos + 1 for pos in self.positions)) if filled else len(self.prompt_ids)
        return tuple(filled[pos] if pos in filled else self.prompt_ids[pos] for pos in range(length))

    @cached_property
    def places(self) -> tuple[tuple[int, int], ...]:
        """For each generated token: its commit, and its place within that commit."""
        found = {
            pos: (number, place)
            for number, commit in enumerate(self.commits)
            for place, pos in enumerate(commit.positions)
        }
        return tuple(found[pos] for pos in self.positions)

    def snapshot(self, commit_index: int) -> Int[Tensor, " T"]:
        """The row as it was when a commit was chosen.

        Args:
            commit_index: number of the commit in `commits`.

        Returns:
            [T] ids: prompt, earlier commits, and the mask up to the end of the current block.
        """
        row = torch.full((self.commits[commit_index].row_length,), self.mask_id)
        shown = self.prompt_ids[: len(row)]
        row[: len(shown)] = torch.tensor(shown, dtype=row.dtype)
        for commit in self.commits[:commit_index]:
            row[list(commit.positions)] = torch.tensor(commit.tokens, dtype=row.dtype)
        return row

    def save(self, out: Path) -> Manifest:
        """Write it as an artifact of kind `trace`.

        Args:
            out: directory; an older trace there is replaced.

        Returns:
            the manifest.
        """
        recipe = {"sampling": self.sampling.model_dump(mode="json"), "steer": self.steer, "model_id": self.model_id}
        stage = Stage(out, "trace", recipe, {})
        with stage.write() as writing:
            write_json(writing.dir / _JSON, self._record().model_dump(mode="json"))
            save_file(self._tensors(), writing.dir / _TENSORS)
            writing.counts.update(
                num_prompt_tokens=len(self.prompt_ids),
                num_tokens=len(self.token_ids),
                num_commits=len(self.commits),
            )
        return read_manifest(out, "trace")

    @classmethod
    def load(cls, path: Path) -> "Trace":
        """Read what `save` wrote.

        Args:
            path: directory.

        Returns:
            an equal trace.

        Raises:
            ArtifactError: not a trace, or damaged.
        """
        read_manifest(path, "trace")
        try:
            record = _Record.model_validate(read_json(path / _JSON))
            tensors = load_file(path / _TENSORS)
            trace = _rebuild(record, tensors)
            _require_whole(trace)
            return trace
        except (ValidationError, SafetensorError, OSError, KeyError, ValueError, RuntimeError) as error:
            reason = str(error).splitlines()[0]
            raise ArtifactError(f"{path}: damaged trace ({reason}); generate it again") from error

    def _record(self) -> "_Record":
        return _Record(
            prompt_ids=self.prompt_ids,
            token_ids=self.token_ids,
            commits=tuple(
                _CommitRecord(step=c.step, positions=c.positions, tokens=c.tokens, row_length=c.row_length)
                for c in self.commits
            ),
            sampling=self.sampling,
            steer=None if self.plan is None else _PlanRecord(layer=self.plan.layer, text=self.plan.text),
            mask_id=self.mask_id,
            model_id=self.model_id,
        )

    def _tensors(self) -> dict[str, Tensor]:
        tensors = {
            "logits": _flat(commit.logits for commit in self.commits),
            "logprobs": _flat(commit.logprobs for commit in self.commits),
        }
        for name in _TOLD:
            tensors |= _stacked(name, [ranked for commit in self.commits for ranked in getattr(commit, name)])
        if self.plan is not None:
            tensors["direction"] = self.plan.direction.cpu().contiguous()
            if self.plan.logit_penalty is not None:
                tensors["logit_penalty"] = self.plan.logit_penalty.cpu().contiguous()
        return tensors


class _CommitRecord(Settings):
    step: int
    positions: tuple[int, ...]
    tokens: tuple[int, ...]
    row_length: int


class _PlanRecord(Settings):
    layer: int
    text: str


class _Record(Settings):
    """The content of `trace.json`."""

    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    commits: tuple[_CommitRecord, ...]
    sampling: Sampling
    steer: _PlanRecord | None
    mask_id: int
    model_id: str


def _rebuild(record: _Record, tensors: dict[str, Tensor]) -> Trace:
    sizes = [len(commit.positions) for commit in record.commits]
    logits, logprobs = (torch.split(tensors[name], sizes) for name in ("logits", "logprobs"))
    told = {name: _unstacked(name, tensors, sizes) for name in _TOLD}
    commits = tuple(
        Commit(
            step=commit.step,
            positions=commit.positions,
            tokens=commit.tokens,
            logits=tuple(logits[number].tolist()),
            logprobs=tuple(logprobs[number].tolist()),
            row_length=commit.row_length,
            alternatives=told["alternatives"][number],
            known=told["known"][number],
            discovered=told["discovered"][number],
        )
        for number, commit in enumerate(record.commits)
    )
    plan = None
    if record.steer is not None:
        penalty = tensors.get("logit_penalty")
        plan = SteerPlan(tensors["direction"], record.steer.layer, penalty, record.steer.text)
    return Trace(
        prompt_ids=record.prompt_ids,
        token_ids=record.token_ids,
        commits=commits,
        sampling=record.sampling,
        plan=plan,
        mask_id=record.mask_id,
        model_id=record.model_id,
    )


def _require_whole(trace: Trace) -> None:
    """Raise ValueError where the parts of a record contradict each other."""
    committed: dict[int, int] = {}
    start = len(trace.prompt_ids)
    gaps = {pos for pos, token in enumerate(trace.prompt_ids) if token == trace.mask_id}
    free = gaps | set(range(start, start + trace.sampling.max_new_tokens))
    for commit in trace.commits:
        # `ar` writes the token that follows its row.
        if not all(pos <= commit.row_length for pos in commit.positions) or not free.issuperset(commit.positions):
            raise ValueError(f"commit {commit.step} lies outside its row")
        committed |= zip(commit.positions, commit.tokens, strict=True)
    if [committed.get(pos) for pos in trace.positions] != list(trace.token_ids):
        raise ValueError("its tokens are not those of its commits")


def _flat(parts: Iterable[tuple[float, ...]]) -> Tensor:
    return torch.tensor([value for part in parts for value in part], dtype=torch.float64)


def _stacked(name: str, rows: list[Ranked]) -> dict[str, Tensor]:
    """Ids and numbers of all positions, [positions, ids of each]; nothing where nothing was asked for."""
    if not rows:
        return {}
    pairs = torch.tensor(rows, dtype=torch.float64)
    return {f"{name}_ids": pairs[..., 0].to(torch.int32), f"{name}_values": pairs[..., 1].contiguous()}


def _unstacked(name: str, tensors: dict[str, Tensor], sizes: list[int]) -> list[tuple[Ranked, ...]]:
    """What `_stacked` put together, by commit."""
    if f"{name}_ids" not in tensors:
        return [()] * len(sizes)
    ids, values = (torch.split(tensors[f"{name}_{part}"], sizes) for part in ("ids", "values"))
    return [
        tuple(tuple(zip(*row, strict=True)) for row in zip(some_ids.tolist(), some_values.tolist(), strict=True))
        for some_ids, some_values in zip(ids, values, strict=True)
    ]
