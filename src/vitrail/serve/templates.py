"""How the conversation of a request becomes a prompt: by the model's own template, contents always as text."""

from collections.abc import Sequence

from vitrail.errors import VitrailError
from vitrail.serve.asking import PromptIds, at_most
from vitrail.serve.chat_schemas import Message
from vitrail.serve.errors import refused
from vitrail.serve.service import Service

# Newer clients say `developer` for what templates call the system.
_TEMPLATE_ROLES = {"developer": "system"}


def conversation_ids(service: Service, messages: Sequence[Message]) -> PromptIds:
    """The prompt of a conversation.

    Args:
        service: the server.
        messages: of the request.

    Returns:
        its ids.

    Raises:
        ApiError: too long, not Unicode text, or not what the model's template takes.
    """
    at_most(sum(len(message.text) for message in messages), service.settings.max_prompt_chars, "messages", "characters")
    said = [{"role": _TEMPLATE_ROLES.get(m.role, m.role), "content": m.text} for m in messages]
    try:
        return tuple(service.model.tokenizer.chat_ids(said))
    except VitrailError as error:
        raise refused(f"messages: {error}", "messages") from error
