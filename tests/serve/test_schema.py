"""Every address of the API, called with what its own OpenAPI document allows and with what it does not."""

import json
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis import GenerationMode
from schemathesis.checks import CheckFunction
from schemathesis.core.result import Ok
from schemathesis.schemas import BaseSchema
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance

from tests.serve.conftest import Server

ADDRESSES = [
    "GET /",
    "GET /health",
    "GET /metrics",
    "GET /report.html",
    "GET /v1/concepts",
    "GET /v1/concepts/{head}/{concept_id}",
    "GET /v1/models",
    "GET /v1/models/{model}",
    "POST /v1/chat/completions",
    "POST /v1/completions",
    "POST /v1/explain",
    "POST /v1/sources",
]
REFUSING = [address for address in ADDRESSES if "concept" in address or address.startswith("POST")]
"""Addresses whose input has a form; the others take nothing, or any text."""
NAMED = ["GET /report.html", "GET /v1/models/{model}"]
"""Addresses of things that exist by another name, or not at all here."""
NUM_EXAMPLES = 25


@pytest.fixture(scope="module")
def api(server: Server) -> BaseSchema:
    return schemathesis.openapi.from_url(f"{server.url}/openapi.json")


def test_every_address_is_described(api: BaseSchema) -> None:
    operations = [found.ok() for found in api.get_all_operations() if isinstance(found, Ok)]
    assert sorted(f"{operation.method.upper()} {operation.path}" for operation in operations) == ADDRESSES


def test_every_field_is_described(api: BaseSchema) -> None:
    schemas = api.raw_schema["components"]["schemas"]
    ours = {name: schema for name, schema in schemas.items() if name not in _documents(schemas)}
    missing = [
        f"{name}.{field}"
        for name, schema in ours.items()
        for field, described in schema.get("properties", {}).items()
        if "description" not in described and "$ref" not in described
    ]
    assert not missing
    assert len(ours) > 30


def _documents(schemas: dict[str, Any]) -> set[str]:
    """Parts of the explanation document, whose page is docs/explanations.md."""
    names, waiting = set[str](), ["Document", "Recall", "SourceHit"]
    while waiting:
        name = waiting.pop()
        names.add(name)
        text = json.dumps(schemas[name])
        waiting += [other for other in schemas if f'schemas/{other}"' in text and other not in names]
    return names


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.name.lower())
@pytest.mark.parametrize("address", ADDRESSES)
def test_every_address_keeps_its_word(api: BaseSchema, address: str, mode: GenerationMode) -> None:
    """No 5xx, documented statuses only, answers that fit their schema, wrong input refused."""
    method, path = address.split()
    operation = api[path][method]
    if mode is GenerationMode.NEGATIVE and address not in REFUSING:
        pytest.skip("every value fits")

    seen = set[int]()

    @seed(0)
    @settings(
        max_examples=NUM_EXAMPLES,
        deadline=None,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def call(case: schemathesis.Case[Any]) -> None:
        _shorten(case.body)
        if mode is GenerationMode.POSITIVE:
            _simplify(case.body)
        # What a schema cannot say (the context, names of concepts) may refuse what it allows.
        excluded: list[CheckFunction] = [positive_data_acceptance]
        answer = case.call()
        if answer.status_code == 413:  # refused unread, which the check of refusals does not know as one
            excluded.append(negative_data_rejection)
        case.validate_response(answer, excluded_checks=excluded)
        seen.add(answer.status_code)

    call()
    assert mode is GenerationMode.NEGATIVE or 200 in seen or address in NAMED


def _shorten(body: Any) -> None:
    """Ask for short answers, so that the test is about words and not about computing."""
    if not isinstance(body, dict):
        return
    for name, most in (("max_tokens", 3), ("max_completion_tokens", 3), ("num_steps", 2), ("n", 2)):
        if type(body.get(name)) is int and body[name] > most:
            body[name] = most
    if "prompt" in body and body.get("max_tokens", None) is None:
        body["max_tokens"] = 3


def _simplify(body: Any) -> None:
    """Leave out what only chance would make right, so that some answers are real ones."""
    if not isinstance(body, dict):
        return
    for name in ("model", "steer", "stop", "stream_options", "explain", "top_logprobs"):
        body.pop(name, None)
    if isinstance(body.get("prompt"), list):
        body["prompt"] = "the river"
