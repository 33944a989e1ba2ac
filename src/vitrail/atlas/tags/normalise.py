"""One way to write a tag, so that the same tag from two hands is one tag (§4.2.2).

What is levelled: compatibility forms (NFKC: ligatures, full-width letters), letter case, kinds of dashes and
apostrophes, invisible characters, blanks. What is not: word order, inflection, accents; those carry meaning, and
near-synonyms meet later, as neighbours in the space of tags.
"""

import re
import unicodedata

_DASHES = dict.fromkeys(map(ord, "\u2010\u2011\u2012\u2013\u2014\u2015\u2212"), "-")
_APOSTROPHES = dict.fromkeys(map(ord, "\u2018\u2019\u201b\u02bc\u00b4`"), "'")
_ALIKE = _DASHES | _APOSTROPHES
_OUTER = re.compile(r"^[^\w]+|[^\w+#)]+$")
_PLURALS = (("ies", "y"), ("sses", "ss"), ("shes", "sh"), ("ches", "ch"), ("xes", "x"), ("ves", "f"))


def normalise(tag: str) -> str:
    """A tag as it is compared and stored; calling it twice changes nothing more.

    Args:
        tag: as somebody wrote it.

    Returns:
        the tag in lower case, one blank between words, no punctuation around it; may be empty.
    """
    previous = None
    while tag != previous:  # folding case can make a form that composes anew; two rounds are the rule
        previous = tag
        tag = fold(tag)
        tag = _OUTER.sub("", " ".join(tag.split()))
    return tag


def fold(text: str) -> str:
    """Compatibility forms and case levelled, look-alikes replaced, invisible characters gone.

    Args:
        text: a word or a phrase.

    Returns:
        the text; its length may differ.
    """
    if text.isascii() and text.isprintable():
        return text.lower().replace("`", "'")
    text = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold()).translate(_ALIKE)
    return "".join(" " if unicodedata.category(c) == "Cc" else c for c in text if unicodedata.category(c) != "Cf")


def singular(tag: str) -> str:
    """A normalised tag with its last word in the singular, as far as English spelling tells.

    Two taggers' "shortest path" and "shortest paths" have the same singular. It is a key for finding doubles,
    not a word to show: "series" becomes "sery".

    Args:
        tag: normalised.

    Returns:
        the key.
    """
    head, blank, last = tag.rpartition(" ")
    for plural, single in _PLURALS:
        if last.endswith(plural) and len(last) > len(plural) + 1:
            return head + blank + last.removesuffix(plural) + single
    if last.endswith("s") and not last.endswith(("ss", "us", "is")) and len(last) > 3:
        last = last[:-1]
    return head + blank + last
