"""GET /v1/models: the one model, its facts and the limits of the server."""

from fastapi import APIRouter

from vitrail.serve.documented import faults
from vitrail.serve.model_schemas import CalibrationFacts, IndexFacts, Limits, Model, ModelFacts, ModelList
from vitrail.serve.service import Here, Service

router = APIRouter(tags=["OpenAI"])


@router.get("/v1/models", responses=faults(), summary="List the model")
def list_models(service: Here) -> ModelList:
    """The one model that this server has."""
    return ModelList(data=[_model(service)])


@router.get("/v1/models/{model:path}", responses=faults(404), summary="Describe the model")
def get_model(model: str, service: Here) -> Model:
    """Facts of the model: sizes, calibration, index, limits."""
    service.require_name(model)
    return _model(service)


def _model(service: Service) -> Model:
    config, settings, index = service.model.network.config, service.settings, service.index
    weight = service.model.network.transformer.lm_head.weight
    facts = ModelFacts(
        model_id=service.model.model_id,
        context_tokens=config.max_length,
        block_tokens=config.block,
        vocab_size=config.vocab_size,
        parameters=sum(parameter.numel() for parameter in service.model.network.parameters()),
        num_known=service.model.network.known_head.num_concepts,
        num_discovered=service.model.network.unknown_head.num_concepts,
        dtype=str(weight.dtype).removeprefix("torch."),
        calibration=_calibration(service),
        index=None if index is None else IndexFacts(num_passages=index.num_passages, recall=index.recall),
        report=service.report is not None,
        limits=Limits(
            **{name: getattr(settings, name) for name in Limits.model_fields if name != "max_new_tokens"},
            max_new_tokens=min(settings.max_new_tokens, config.max_length - 1),
        ),
        prompts=[] if service.examples is None else service.examples.prompts,
    )
    return Model(id=service.name, created=service.created, vitrail=facts)


def _calibration(service: Service) -> CalibrationFacts | None:
    calibration = service.calibration
    return None if calibration is None else CalibrationFacts(layer=calibration.layer, target=calibration.target)
