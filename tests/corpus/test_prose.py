"""Documentation becomes prose: markup, code and declarations go, descriptions stay."""

from inspect import cleandoc

import pytest

from vitrail.corpus.prose import clean_paragraph, docstring_prose, is_prose, plain_html, sentences
from vitrail.corpus.repeats import without_repeats

DOCSTRING = cleandoc("""
    Return the largest clique of a graph, as a list of nodes.

    The search uses :func:`~networkx.find_cliques` and *bounds* the size [1]_ by the ``core`` number of each
    node. See https://example.org/cliques for more.

    Parameters
    ----------
    G : NetworkX graph
        An undirected graph without self loops, directed graphs are refused.
    limit : int, optional (default=3)
        Stop as soon as a clique of this size was found.

    Returns
    -------
    list
        The nodes of the largest clique that was found in time.

    Examples
    --------
    A complete graph is one clique as a whole.

    >>> G = nx.complete_graph(4)
    >>> largest_clique(G)
    [0, 1, 2, 3]

    The result is a plain list::

        for node in largest_clique(G):
            print(node)

    .. math:: \\omega(G) = \\max |C|

    .. note:: The running time grows exponentially with the number of nodes.

    See Also
    --------
    find_cliques : enumerates all of the maximal cliques of a graph

    References
    ----------
    .. [1] Bron, C. and Kerbosch, J., "Algorithm 457", 1973.
""")


def test_docstring_becomes_prose() -> None:
    assert docstring_prose(DOCSTRING) == [
        "Return the largest clique of a graph, as a list of nodes.",
        "The search uses networkx.find_cliques and bounds the size by the core number of each node. See for more.",
        "An undirected graph without self loops, directed graphs are refused.",
        "Stop as soon as a clique of this size was found.",
        "The nodes of the largest clique that was found in time.",
        "A complete graph is one clique as a whole.",
        "The result is a plain list.",
        "The running time grows exponentially with the number of nodes.",
    ]


@pytest.mark.parametrize(
    "line",
    [
        "x = np.array([[1, 2], [3, 4]])",
        "Copyright 2020 by the authors of this file.",
        "12.5 14.8 19.2 22.1 seconds",
        "two words",
    ],
)
def test_code_figures_and_licences_are_not_prose(line: str) -> None:
    assert not is_prose(line)


def test_sentences_rejoin_to_the_paragraph() -> None:
    text = "Values, e.g. The mean, are kept. J. Smith wrote it! Is it so? Yes."
    assert " ".join(sentences(text)) == text
    assert sentences(text)[0] == "Values, e.g. The mean, are kept."


def test_html_becomes_lines() -> None:
    assert plain_html("<p><strong>note:</strong> a &amp; b<br>c</p>").split("\n") == ["", "note: a & b", "c", ""]


def test_short_paragraphs_are_dropped() -> None:
    assert clean_paragraph("Too short to keep.") == ""


def test_boilerplate_goes_and_a_repeat_is_kept_once() -> None:
    boilerplate = "This sentence stands in every single entry here."
    twice = "This one stands in only two of the entries."
    entries = [[f"{boilerplate} Something that is said only in entry {name}."] for name in ("one", "two", "three")]
    entries[0].append(twice)
    entries[2].append(twice)
    kept = without_repeats(entries)
    assert kept[0] == ["Something that is said only in entry one.", twice]
    assert kept[2] == ["Something that is said only in entry three."]
