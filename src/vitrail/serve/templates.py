"""How a conversation becomes a prompt."""

from collections.abc import Sequence


def plain_template(texts: Sequence[str]) -> str:
    """The prompt of a conversation with a model that has no roles.

    Args:
        texts: of its messages.

    Returns:
        them below one another, a blank line after each; the answer continues there.
    """
    return "".join(f"{text}\n\n" for text in texts)
