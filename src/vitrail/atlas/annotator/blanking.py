"""Texts with a concept's tags struck out: what is left must carry the concept (§4.2.3).

Labels by evidence need a tag in the text, so a head trained on them as they stand learns the tags and nothing
else. Struck out of the text, a tag cannot be seen by any encoder, not even in part or in another tag.
"""

import re
from collections.abc import Sequence
from re import Pattern

GAP = " … "
"""Stands where a tag stood, so that the words around it do not run into a new phrase."""


def tag_pattern(tags: Sequence[str]) -> Pattern[str] | None:
    """What finds every occurrence of some tags, whatever their case and the blanks within them.

    Args:
        tags: phrases.

    Returns:
        a pattern whose longest alternatives come first; None if there are no tags.
    """
    alternatives = sorted({r"\s+".join(map(re.escape, tag.split())) for tag in tags}, key=lambda p: (-len(p), p))
    if not alternatives:
        return None
    return re.compile(r"(?<!\w)(?:" + "|".join(alternatives) + r")(?!\w)", re.IGNORECASE)


def blank(text: str, pattern: Pattern[str] | None) -> str:
    """A text without some tags.

    Args:
        text: any text.
        pattern: of `tag_pattern`.

    Returns:
        the text with an ellipsis for each occurrence; the text itself if there is none.
    """
    return text if pattern is None else pattern.sub(GAP, text)
