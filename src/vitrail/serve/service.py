"""What handlers work with: the model, the engine, the limits, and the answers given so far."""

import time
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated

from fastapi import Depends, Request

from vitrail.api import LoadedModel
from vitrail.explain import Document, ExplainSettings, Index, explain
from vitrail.generate import Trace
from vitrail.serve.answers import Answers
from vitrail.serve.engine import Engine
from vitrail.serve.errors import not_found, refused
from vitrail.serve.examples import Examples
from vitrail.serve.meters import Meters
from vitrail.serve.schemas import ExplainOptions
from vitrail.serve.settings import ServeSettings
from vitrail.steer import Calibration


@dataclass(frozen=True)
class Service:
    """One served model.

    Attributes:
        model: the model.
        engine: writes its answers.
        settings: limits.
        name: what clients call the model.
        index: of its training passages, or None.
        report: page of figures, or None.
        calibration: what strength 1.0 means; None where the model was not calibrated.
        answers: kept for explanations.
        meters: counts of what happened.
        created: when the server began, in seconds since 1970.
    """

    model: LoadedModel
    engine: Engine
    settings: ServeSettings
    name: str
    index: Index | None
    report: Path | None
    calibration: Calibration | None
    answers: Answers
    meters: Meters
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def context_tokens(self) -> int:
        """Tokens of prompt and answer together."""
        return self.model.network.config.max_length

    @cached_property
    def examples(self) -> Examples | None:
        """Training passages of concepts; None without an index."""
        return None if self.index is None else Examples(self.index.corpus)

    def require_name(self, name: str | None) -> None:
        """Refuse a request for another model.

        Args:
            name: of the request.

        Raises:
            ApiError: not the name of this one.
        """
        if name is not None and name != self.name:
            message = f"there is no model '{name[:60]}' here; the model is called '{self.name}'"
            raise not_found(message, "model", "model_not_found")

    async def explain(self, trace: Trace, options: ExplainOptions) -> Document:
        """Explain an answer, beside generation.

        Args:
            trace: the answer.
            options: how much to say.

        Returns:
            the explanation.

        Raises:
            ApiError: more is asked for than the server allows.
        """
        self.check_explain(options)
        settings = ExplainSettings.parse(options.model_dump())
        model = self.model
        return await self.engine.run(
            lambda: explain(model.network, model.tokenizer, model.library, trace, index=self.index, settings=settings)
        )

    def check_explain(self, options: ExplainOptions) -> None:
        """Refuse explanations that are too long, before anything is written.

        Args:
            options: how much to say.

        Raises:
            ApiError: more is asked for than the server allows.
        """
        limits = self.settings
        for name, limit in (
            ("num_steps", limits.max_explain_steps),
            ("top_inputs", limits.max_ranked),
            ("top_concepts", limits.max_ranked),
            ("top_sources", limits.max_ranked),
        ):
            value = getattr(options, name)
            if value > limit:
                raise refused(f"{name}: {value} is more than the {limit} that this server allows", name)


def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


Here = Annotated[Service, Depends(_service)]
"""The service, as a parameter of a handler."""
