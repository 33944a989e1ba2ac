"""Prose out of marked-up documentation: what a reader would read aloud, and nothing else.

A docstring is cut into *blocks* (runs of lines of one indentation between blank lines). Code, doctests,
tables, formulas, reference lists and parameter declarations go; descriptions stay. What stays loses its
inline markup, is unwrapped to one line per paragraph, and is filtered sentence by sentence.
"""

import html
import re
from collections.abc import Callable, Iterator

MIN_LETTER_SHARE = 0.72
"""Share of letters among the visible characters below which a sentence is taken for code or a table."""

MIN_PLAIN_SHARE = 0.4
"""Share of words in lower case below which a paragraph of a docstring is a list of names."""

MIN_SENTENCE_WORDS = 3
MIN_PARAGRAPH_WORDS = 6

_SILENT_SECTIONS = frozenset({
    "see also", "references", "methods", "routines", "index", "version", "author", "authors",
})  # fmt: skip
_SECTION_TITLES = _SILENT_SECTIONS | {
    "algorithm", "arguments", "attributes", "background", "definition", "description", "details", "example",
    "examples", "exceptions", "explanation", "explanations", "flags", "hints", "input", "keyword arguments",
    "note", "notes", "optional", "options", "other parameters", "output", "overview", "parameters", "properties",
    "purpose", "raises", "receives", "reference", "return", "returns", "syntax", "todo", "usage", "warning",
    "warnings", "warns", "yields",
}  # fmt: skip
_KEPT_DIRECTIVES = frozenset({
    "admonition", "attention", "caution", "hint", "important", "note", "tip", "topic", "warning",
})  # fmt: skip

_UNDERLINE = re.compile(r"^\s*([=\-~*^#\"`+.:_])\1{2,}\s*$")
_DECLARATION = re.compile(
    r"^\s*(?:[*`'\"\w.,/\[\]() |-]{1,60}?\s+:\s.*"  # numpydoc: `x, y : array_like`
    r"|[*`'\w.,\[\]()]{1,40}\s*:"  # a name alone
    r"|:(?:param|type|returns?|rtype|raises)\b[^:]*:.*"  # Sphinx
    r"|[\w.]+(?:, [\w.]+)*\s*:\s*"
    r"(?:int|str|bool|float|list|tuple|dict|array|callable|optional|None|graph|node)\b.*)$"
)
_DIRECTIVE = re.compile(r"^(\s*)\.\.\s+(?:\[[^\]]+\]|_[^:]+:|\|[^|]+\||([\w-]+)::|[^\s])")
_FRAGMENT = re.compile(r"[a-z]\S*\s(?!(?:is|are|was|should|must|can|may|will|has|have|specifies|determines)\b)")
_PROMPTS = (">>>", "... ", "In [", "Out[", "$ ", "% ")
_BULLET = re.compile(r"^\s*(?:[-*+•o]|\(?\d{1,2}[.)]|\(?[a-z][.)])\s+(?=\S)")
_TABLE = re.compile(r"[|+]\s*[-=]{3,}|[=-]{3,}\s+[=-]{3,}|\|.*\||\S {3,}\S.* {3,}\S|^\s*[|+=-]")
_LICENCE = re.compile(
    r"copyright|licen[cs]e|all rights reserved|permission is hereby|warrant(?:y|ies)|\bGPL\b|\bBSD\b|"
    r"written by|\bauthors?:|\bcontributed by\b|@|\bpp?g?\.\s?\d|doctest|\bTODO\b|\bXXX\b|\bFIXME\b",
    re.IGNORECASE,
)

_INLINE: list[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]] = [
    (re.compile(r"<?(?:https?|ftp|file)://[^\s>)]+>?|\bwww\.[^\s>)]+", re.IGNORECASE), ""),
    (re.compile(r"\bdoi:\s?\S+|\bdoi\.org/\S+", re.IGNORECASE), ""),
    (re.compile(r":math:`([^`]*)`"), lambda match: _formula(match[1])),
    (re.compile(r":[\w:+-]+:`~?\.?([^`<]*?)\s*<[^`>]*>`"), r"\1"),
    (re.compile(r":[\w:+-]+:`[~!.]?([^`]*)`"), r"\1"),
    (re.compile(r"`([^`<]+?)\s*<[^`>]+>`_*"), r"\1"),
    (re.compile(r"``?[~!]?([^`]*)`?`_*"), r"\1"),
    (re.compile(r"(?:\s+(?:in|see|from|by|of|to))?\s*\[[\w#*.-]{1,12}\]_?(?!\w)"), ""),
    (re.compile(r"\$\$?([^$]*)\$\$?"), lambda match: _formula(match[1])),
    (re.compile(r"(?<![\w*])\*\*?([^*\s](?:[^*]*[^*\s])?)\*\*?(?![\w*])"), r"\1"),
    (re.compile(r"(?<!\w)\|(\w[^|]*\w)\|(?!\w)"), r"\1"),
    (re.compile(r"\\[a-zA-Z]+|\\."), " "),
    (re.compile(r"\s*\((?:see|cf\.?|e\.g\.)?[\s,;.]*\)|\[\s*\]|<\s*>"), ""),
    (re.compile(r"(?<=\w)_(?=[\s.,;:)])"), ""),
]  # fmt: skip
_MARKUP = re.compile(r"[`*|\\$\[<]|\w_\b|://|www\.|doi", re.IGNORECASE)
_SENTENCE_END = re.compile(r"(?<=[.!?])[\"')\]]?\s+(?=[\"'(\[]?[A-Z])")
_ABBREVIATION = re.compile(
    r"(?:\b(?:e\.g|i\.e|cf|etc|vs|Dr|Mr|Mrs|Ms|St|Gen|Sr|Jr|approx|no|[A-Z])\.|\bU\.S\.)$", re.IGNORECASE
)
_NOT_LETTER = re.compile(r"[\W\d_]+")
_CODE_SIGN = re.compile(r"[=_{}<>|\\^#~]")
_TAG = re.compile(r"<[^<>]{1,200}>")
_BREAK = re.compile(r"<\s*(?:br|/?p|/?li|/?ul)\b[^>]*>", re.IGNORECASE)


def docstring_prose(text: str) -> list[str]:
    """The paragraphs of a docstring that are prose.

    Args:
        text: docstring with its indentation removed, in reStructuredText, numpydoc or plain text.

    Returns:
        paragraphs, one line each, without markup; empty where nothing readable is left.
    """
    cleaned = (clean_paragraph(" ".join(block)) for block in _blocks(text.expandtabs().split("\n")))
    return [paragraph for paragraph in cleaned if _is_readable(paragraph)]


def _is_readable(paragraph: str) -> bool:
    """Whether a paragraph is neither the tail of something dropped nor a bare list of names."""
    words = paragraph.split()
    num_plain = sum(word[0].islower() for word in words)
    return bool(words) and not _FRAGMENT.match(paragraph) and num_plain >= MIN_PLAIN_SHARE * len(words)


def clean_paragraph(text: str) -> str:
    """One paragraph without inline markup and without sentences that are not prose.

    Args:
        text: an unwrapped paragraph.

    Returns:
        the paragraph, or an empty string where fewer than six words are left.
    """
    if _MARKUP.search(text):
        for pattern, replacement in _INLINE:
            text = pattern.sub(replacement, text)
    text = re.sub(r"\s+", " ", text).strip()
    text = re.sub(r"\s+([,.;:!?)])(?!\w)", r"\1", text.replace("( ", "("))
    kept = " ".join(sentence for sentence in sentences(text) if is_prose(sentence))
    kept = re.sub(r"(?:\s*:)+$", ".", kept)
    return kept if len(kept.split()) >= MIN_PARAGRAPH_WORDS else ""


def plain_html(text: str) -> str:
    """Text of an HTML fragment, with a line break for each `<br>`, paragraph or list item.

    Args:
        text: HTML.

    Returns:
        plain text.
    """
    return html.unescape(_TAG.sub("", _BREAK.sub("\n", text))).replace("\xa0", " ")


def sentences(text: str) -> list[str]:
    """A paragraph's sentences, in order; joined by spaces they give the paragraph.

    Args:
        text: one paragraph on one line.

    Returns:
        sentences; common abbreviations and initials do not end one.
    """
    found: list[str] = []
    for piece in _SENTENCE_END.split(text):
        if found and _ABBREVIATION.search(found[-1]):
            found[-1] += " " + piece
        else:
            found.append(piece)
    return found


def is_prose(sentence: str) -> bool:
    """Whether a sentence is words rather than code, numbers, a licence line or an address.

    Args:
        sentence: one sentence.

    Returns:
        True for prose.
    """
    visible = len(sentence) - sentence.count(" ")
    letters = len(_NOT_LETTER.sub("", sentence))
    if len(sentence.split()) < MIN_SENTENCE_WORDS or letters < MIN_LETTER_SHARE * visible:
        return False
    if _LICENCE.search(sentence):
        return False
    return len(_CODE_SIGN.findall(sentence)) <= 0.03 * visible


def _blocks(lines: list[str]) -> Iterator[list[str]]:
    """Runs of prose lines of one indentation, without section titles, tables and declarations."""
    block: list[str] = []
    indent = 0
    for line, depth in _without_code(lines):
        is_bullet = _BULLET.match(line) is not None
        is_item = bool(block) and _BULLET.match(block[0]) is not None
        if not line or _is_layout(line) or (_DECLARATION.match(line) and (not block or depth <= indent)):
            yield from _flush(block)
            continue
        if block and (is_bullet or (depth != indent and not is_item)):
            yield from _flush(block)
        if not block:
            indent = depth
        block.append(line)
    yield from _flush(block)


def _without_code(lines: list[str]) -> Iterator[tuple[str, int]]:
    """(line, indentation), emptied where it belongs to a doctest, literal, directive or silent section."""
    silent_deeper_than: int | None = None
    is_doctest = is_silent_section = False
    for number, line in enumerate(lines):
        depth = len(line) - len(line.lstrip())
        below = lines[number + 1] if number + 1 < len(lines) else ""
        if line.strip() and silent_deeper_than is not None and depth <= silent_deeper_than:
            silent_deeper_than = None
        is_doctest = bool(line.strip()) and (is_doctest or line.lstrip().startswith(_PROMPTS))
        if _UNDERLINE.match(below) and line.strip():
            is_silent_section = _title(line) in _SILENT_SECTIONS
            yield "", depth
        elif silent_deeper_than is not None or is_doctest or is_silent_section:
            yield "", depth
        elif directive := _DIRECTIVE.match(line):
            if directive[2] in _KEPT_DIRECTIVES:
                yield line[directive.end() :].strip(), depth + 3
            else:
                silent_deeper_than = depth
                yield "", depth
        else:
            if line.rstrip().endswith("::"):
                silent_deeper_than = depth
            if _title(line) in _SILENT_SECTIONS:
                is_silent_section = True
            yield line.strip(), depth


def _is_layout(line: str) -> bool:
    return bool(_UNDERLINE.match(line) or _TABLE.search(line)) or _title(line) in _SECTION_TITLES


def _title(line: str) -> str:
    return line.strip().strip("*:").lower()


def _flush(block: list[str]) -> Iterator[list[str]]:
    if block:
        lines = [_BULLET.sub("", block[0]).strip(), *(line.strip() for line in block[1:])]
        lines[-1] = re.sub(r"\s*::$", ":", lines[-1])
        yield lines
        block.clear()


def _formula(text: str) -> str:
    """A formula as plain letters where it is short and simple, and nothing where it is not."""
    plain = re.sub(r"\\(?:mathrm|mathbf|mathbb|mathcal|text|operatorname)\s*", "", text)
    plain = re.sub(
        r"\\(alpha|beta|gamma|delta|epsilon|lambda|mu|pi|sigma|theta|omega|phi|psi|rho|tau|infty)\b",
        r"\1",
        plain,
    )
    plain = re.sub(r"[{}$]", "", plain).strip()
    return plain if len(plain) <= 24 and "\\" not in plain else ""
