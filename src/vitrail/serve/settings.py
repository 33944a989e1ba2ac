"""Limits of the server: one place for every size that a request may have."""

from typing import Annotated

from pydantic import Field

from vitrail.settings import Settings

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")

_Count = Annotated[int, Field(ge=1)]


class ServeSettings(Settings):
    """What one server allows.

    Attributes:
        max_batch: answers that are written together, in one forward of the network.
        max_waiting: answers that may wait for their turn; beyond it a request is refused with 429.
        max_body_bytes: size of a request.
        max_prompt_chars: characters of all prompts together, of all messages of a chat together, or of a text whose
            sources are asked for.
        max_prompts: prompts in one request.
        max_messages: messages of a chat.
        max_n: answers to each prompt.
        max_choices: answers in one request (prompts times n).
        max_new_tokens: tokens of an answer; the context of the model may allow fewer.
        max_stop: stop strings.
        max_stop_chars: characters of a stop string.
        max_steers: concepts steered at once.
        max_steer_chars: characters of a steering request written as text.
        max_query_chars: characters of a search for concepts.
        max_page: concepts in one answer.
        max_explain_steps: nodes of the integral over inputs.
        max_ranked: inputs, concepts or sources that an explanation lists for a token or chunk.
        kept_answers: requests whose answers can be explained later by their id.
        ping_s: a stream that has nothing to say sends a comment after so many seconds.
        retry_after_s: what a refused client is told to wait.
        allowed_hosts: names in the Host header that are answered, with any port; none means all. The
            default keeps other sites' pages from reaching a server on this machine (DNS rebinding).
    """

    max_batch: _Count = 16
    max_waiting: _Count = 256
    max_body_bytes: _Count = 2**20
    max_prompt_chars: _Count = 65_536
    max_prompts: _Count = 16
    max_messages: _Count = 256
    max_n: _Count = 16
    max_choices: _Count = 64
    max_new_tokens: _Count = 4096
    max_stop: _Count = 16
    max_stop_chars: _Count = 256
    max_steers: _Count = 16
    max_steer_chars: _Count = 4096
    max_query_chars: _Count = 256
    max_page: _Count = 200
    max_explain_steps: _Count = 64
    max_ranked: _Count = 50
    kept_answers: _Count = 256
    ping_s: Annotated[float, Field(gt=0)] = 15.0
    retry_after_s: _Count = 2
    allowed_hosts: tuple[str, ...] = LOOPBACK_NAMES
