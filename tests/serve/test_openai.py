"""The official OpenAI client drives the server: completions, chat, streams, errors, and our fields beside theirs."""

import math
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletionMessageParam

from tests.serve.conftest import Server

PROMPT = "the river and the delta"
HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "the river"}]


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def complete(client: openai.OpenAI, prompt: Any = PROMPT, **fields: Any) -> Completion:
    """One request; what the client's types do not know goes beside."""
    fields = {"model": "model", "max_tokens": 12, "seed": 3} | fields
    extra: dict[str, Any] = {name: fields.pop(name) for name in ("steer", "commits", "explain") if name in fields}
    create: Any = client.completions.create
    answer: Completion = create(prompt=prompt, extra_body=extra, **fields)
    return answer


def extras(choice: Any) -> dict[str, Any]:
    return dict(choice.model_extra["vitrail"])


def test_same_seed_same_text(client: openai.OpenAI) -> None:
    first, again, other = (complete(client, seed=seed).choices[0].text for seed in (3, 3, 4))
    assert first == again
    assert first != other


def test_text_is_what_the_package_writes(client: openai.OpenAI, server: Server) -> None:
    """The server adds nothing to the model: same prompt, seed and settings, same tokens in Python."""
    from vitrail.generate import Sampling

    sampling = Sampling(max_new_tokens=30, temperature=0.7, top_p=0.9, seed=5, allowed_specials=("eoc", "eos"))
    expected = server.model.continue_prompt(PROMPT, sampling)
    choice = complete(client, max_tokens=30, temperature=0.7, top_p=0.9, seed=5).choices[0]
    assert choice.text == expected.text
    assert extras(choice)["token_ids"] == list(expected.token_ids)


def test_temperature_zero_needs_no_seed(client: openai.OpenAI) -> None:
    texts = {complete(client, temperature=0, seed=seed).choices[0].text for seed in (1, 2)}
    assert len(texts) == 1


def test_a_drawn_seed_is_reported_and_repeats_the_answer(client: openai.OpenAI) -> None:
    choice = complete(client, seed=None).choices[0]
    assert complete(client, seed=extras(choice)["seed"]).choices[0].text == choice.text


def test_n_and_several_prompts(client: openai.OpenAI) -> None:
    prompts = [PROMPT, "a court of appeal"]
    answer = complete(client, prompts, n=2, seed=7)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert [extras(choice)["seed"] for choice in answer.choices] == [7, 8, 7, 8]
    assert answer.choices[3].text == complete(client, prompts[1], seed=8).choices[0].text


def test_prompts_of_ids(client: openai.OpenAI, server: Server) -> None:
    ids = list(server.model.prompt_ids(PROMPT))
    expected = complete(client).choices[0].text
    assert complete(client, ids).choices[0].text == expected
    assert [choice.text for choice in complete(client, [ids, ids]).choices] == [expected] * 2


def test_usage_counts_tokens(client: openai.OpenAI, server: Server) -> None:
    answer = complete(client, n=2)
    assert answer.usage is not None
    written = sum(len(extras(choice)["token_ids"]) for choice in answer.choices)
    assert answer.usage.prompt_tokens == len(server.model.prompt_ids(PROMPT))
    assert answer.usage.completion_tokens == written
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + written


def test_stop_is_left_out_and_ends_the_answer(client: openai.OpenAI) -> None:
    whole = complete(client, max_tokens=40).choices[0].text
    stop = whole[10:14]
    choice = complete(client, max_tokens=40, stop=[stop, "never there"]).choices[0]
    assert choice.text == whole[: whole.index(stop)]
    assert choice.finish_reason == "stop"


def test_streamed_stop_is_held_back(client: openai.OpenAI) -> None:
    """No chunk may show the beginning of a stop text that is completed later."""
    whole = complete(client, max_tokens=40).choices[0].text
    stop = whole[10:14]
    shown = ""
    for chunk in complete_stream(client, max_tokens=40, stop=stop):
        for choice in chunk.choices:
            shown += choice.text
            assert whole[: whole.index(stop)].startswith(shown)
    assert shown == whole[: whole.index(stop)]


def complete_stream(client: openai.OpenAI, prompt: Any = PROMPT, **fields: Any) -> Iterator[Completion]:
    yield from complete(client, prompt, stream=True, **fields)  # type: ignore[misc]


def test_stream_is_the_same_text(client: openai.OpenAI) -> None:
    whole = complete(client, n=2, max_tokens=40)
    texts, ends, usage = {0: "", 1: ""}, {}, None
    for chunk in complete_stream(client, n=2, max_tokens=40, stream_options={"include_usage": True}):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            if choice.finish_reason:
                ends[choice.index] = extras(choice)["token_ids"]
    assert list(texts.values()) == [choice.text for choice in whole.choices]
    assert ends == {choice.index: extras(choice)["token_ids"] for choice in whole.choices}
    assert usage == whole.usage


def test_stream_tells_every_commit(client: openai.OpenAI) -> None:
    commits: list[dict[str, Any]] = []
    ids: list[int] = []
    for chunk in complete_stream(client, commits=True, max_tokens=20):
        commits += [commit for choice in chunk.choices for commit in extras(choice).get("commits", [])]
        (ids,) = [extras(choice).get("token_ids", []) for choice in chunk.choices]
    assert [commit["step"] for commit in commits] == list(range(len(commits)))
    filled = {pos: id_ for commit in commits for pos, id_ in zip(commit["positions"], commit["ids"], strict=True)}
    assert [filled[pos] for pos in range(len(ids))] == ids
    assert commits == extras(complete(client, commits=True, max_tokens=20).choices[0])["commits"]


def test_logprobs_of_completions(client: openai.OpenAI) -> None:
    choice = complete(client, logprobs=3, max_tokens=30).choices[0]
    found = choice.logprobs
    assert found is not None
    assert found.tokens
    assert found.token_logprobs
    assert found.top_logprobs
    assert found.text_offset
    assert len(found.tokens) == len(found.token_logprobs) == len(found.top_logprobs) == len(found.text_offset)
    assert all(logprob <= 0 for logprob in found.token_logprobs)
    for token, logprob, best in zip(found.tokens, found.token_logprobs, found.top_logprobs, strict=True):
        assert len(best) <= 3
        assert logprob <= max(best.values()) + 1e-6
        if "\ufffd" not in token:
            assert math.isclose(best.get(token, logprob), logprob, abs_tol=1e-4)
    for token, offset in zip(found.tokens, found.text_offset, strict=True):
        if "\ufffd" not in token and not token.startswith("<|"):
            assert choice.text[offset : offset + len(token)] == token


def test_logprobs_are_those_of_the_trace(client: openai.OpenAI, server: Server) -> None:
    from vitrail.generate import Sampling

    sampling = Sampling(max_new_tokens=12, temperature=1.0, seed=3, allowed_specials=("eoc", "eos"))
    trace = server.model.continue_prompt(PROMPT, sampling).trace
    expected = [trace.commits[number].logprobs[place] for number, place in trace.places]
    found = complete(client, logprobs=0).choices[0].logprobs
    assert found is not None
    assert found.token_logprobs == pytest.approx(expected[: len(found.token_logprobs or [])], abs=1e-4)


def test_streamed_logprobs_are_the_same(client: openai.OpenAI) -> None:
    whole = complete(client, logprobs=2, max_tokens=30).choices[0].logprobs
    assert whole is not None
    tokens, offsets = [], []
    for chunk in complete_stream(client, logprobs=2, max_tokens=30):
        for choice in chunk.choices:
            assert choice.logprobs is not None
            tokens += choice.logprobs.tokens or []
            offsets += choice.logprobs.text_offset or []
    assert tokens == whole.tokens
    assert offsets == whole.text_offset


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="model", messages=HELLO, max_completion_tokens=10, seed=1, logprobs=True, top_logprobs=2
    )
    choice = answer.choices[0]
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")
    assert choice.message.role == "assistant"
    assert choice.logprobs is not None
    assert choice.logprobs.content
    for token in choice.logprobs.content:
        assert len(token.top_logprobs) == 2
        assert bytes(token.bytes or []).decode("utf-8", "replace") == token.token
    # The template is plain, so the same prompt can be written by hand.
    assert complete(client, "the river\n\n", max_tokens=10, seed=1).choices[0].text == choice.message.content


def test_chat_stream(client: openai.OpenAI) -> None:
    fields: dict[str, Any] = {"model": "model", "messages": HELLO, "max_tokens": 20, "seed": 2}
    whole = client.chat.completions.create(**fields)
    text, roles, reason, usage = "", [], None, None
    stream = client.chat.completions.create(**fields, stream=True, stream_options={"include_usage": True})
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            roles += [choice.delta.role] if choice.delta.role else []
            reason = choice.finish_reason or reason
    assert (text, reason) == (whole.choices[0].message.content, whole.choices[0].finish_reason)
    assert roles == ["assistant"]
    assert usage == whole.usage


def test_chat_goes_on_from_its_own_answer(client: openai.OpenAI) -> None:
    """Clients send the message object back as it came."""
    first = client.chat.completions.create(model="model", messages=HELLO, max_tokens=5, seed=1)
    messages: list[Any] = [
        *HELLO,
        first.choices[0].message,
        {"role": "user", "content": [{"type": "text", "text": "x"}]},
    ]
    assert client.chat.completions.create(model="model", messages=messages, max_tokens=5).choices


def test_models(client: openai.OpenAI, server: Server) -> None:
    (listed,) = client.models.list().data
    found = client.models.retrieve("model")
    assert found == listed
    facts = (found.model_extra or {})["vitrail"]
    assert facts["model_id"] == server.model.model_id
    assert facts["index"]["num_passages"] > 0
    assert facts["limits"]["max_n"] == 16


def test_steering_arrives_and_changes_the_answer(client: openai.OpenAI, server: Server) -> None:
    plain = complete(client).choices[0]
    steered = complete(client, steer="rivers=+2.0; glass=off").choices[0]
    assert extras(plain)["steer"] == ""
    assert extras(steered)["steer"] == "rivers=+2.0; glass=off"
    assert steered.text != plain.text
    parts = [{"concept": "rivers", "strength": 2}, {"concept": 1, "off": True}]
    assert complete(client, steer=parts).choices[0].text == steered.text


def test_explanation_beside_the_answer(client: openai.OpenAI) -> None:
    answer = complete(client, max_tokens=6, explain={"num_steps": 4})
    document = extras(answer.choices[0])["explanation"]
    assert document["format"] == "vitrail.explanation/1"
    assert document["text"] == answer.choices[0].text
    assert document["inputs"]["steps"] == 4
    assert document["certificate"]["passed"]


def test_fields_that_change_nothing_are_accepted(client: openai.OpenAI) -> None:
    expected = complete(client).choices[0].text
    neutral: dict[str, Any] = {
        "user": "someone",
        "presence_penalty": 0,
        "frequency_penalty": 0.0,
        "logit_bias": {},
        "echo": False,
        "best_of": 1,
        "suffix": None,
    }
    assert complete(client, **neutral).choices[0].text == expected
    chat = client.chat.completions.create(
        model="model", messages=HELLO, max_tokens=3, store=False, metadata={"a": "b"}, response_format={"type": "text"}
    )
    assert chat.choices


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"suffix": "x"}, "suffix"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"presence_penalty": 0.5}, "presence_penalty"),
        ({"frequency_penalty": -1}, "frequency_penalty"),
        ({"echo": True}, "echo"),
        ({"best_of": 2}, "best_of"),
    ],
)
def test_fields_that_are_not_supported(client: openai.OpenAI, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as refusal:
        complete(client, **fields)
    assert refusal.value.param == param
    assert "not supported" in str(refusal.value)


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        {"response_format": {"type": "json_object"}},
        {"tool_choice": "required"},
        {"store": True},
        {"modalities": ["audio"]},
        {"reasoning_effort": "high"},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_chat_fields_that_are_not_supported(client: openai.OpenAI, fields: dict[str, Any]) -> None:
    with pytest.raises(openai.BadRequestError) as refusal:
        client.chat.completions.create(model="model", messages=HELLO, **fields)
    assert refusal.value.param == next(iter(fields))


def test_unknown_field_names_the_nearest(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="temperature") as refusal:
        client.completions.create(model="model", prompt="x", extra_body={"temprature": 1})
    assert refusal.value.code == "unknown_field"
    with pytest.raises(openai.BadRequestError, match="strength") as refusal:
        client.completions.create(model="model", prompt="x", extra_body={"steer": [{"concept": 1, "strenght": 1}]})
    assert refusal.value.param == "steer[0].strenght"


def test_other_model(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as refusal:
        complete(client, model="gpt-4")
    assert refusal.value.code == "model_not_found"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-4")


def test_unknown_concept_names_the_nearest(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="rivers") as refusal:
        complete(client, steer="river=+1")
    assert refusal.value.code == "concept_not_found"


def test_context_is_told_by_how_much(client: openai.OpenAI, server: Server) -> None:
    num_prompt = len(server.model.prompt_ids(PROMPT))
    with pytest.raises(openai.BadRequestError, match=f"{num_prompt + 200 - 128} too many") as refusal:
        complete(client, max_tokens=200)
    assert refusal.value.code == "context_length_exceeded"


def test_default_length_takes_what_room_there_is(client: openai.OpenAI, server: Server) -> None:
    ids = list(server.model.prompt_ids(PROMPT * 30))[:110]
    choice = complete(client, ids, max_tokens=None).choices[0]
    assert len(extras(choice)["token_ids"]) <= 18


def test_special_tokens_typed_by_a_user_are_text(client: openai.OpenAI, server: Server) -> None:
    typed = "<|endoftext|><|mask|>"
    answer = complete(client, typed, max_tokens=2)
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 1 + len(server.model.tokenizer.encode(typed)) > 10
