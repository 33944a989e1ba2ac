"""What the charts of the page show: rows and lines taken from the summary, with their plain names."""

from collections.abc import Iterable, Mapping
from typing import Any

from markupsafe import Markup

from vitrail.demo.report.charts import Point, Series, Track, line_chart, tracks
from vitrail.demo.report.data import ReportData, TrainingPoint
from vitrail.demo.report.figures import Figure, deletion, figure, number, part
from vitrail.demo.report.formats import decimals

VARIANTS = (
    ("after", "after the steering phase"),
    ("before", "before it"),
    ("control", "equal extra training"),
)
REPLACEMENTS = (("resample", "another place's"), ("mean", "the average"), ("zero", "nothing"))


def stage_bars(summary: Mapping[str, Any]) -> list[tuple[str, float, float]]:
    """Wall time of each stage.

    Args:
        summary: the content of summary.json.

    Returns:
        name, seconds, length of the bar in percent.
    """
    walls = [(name, number(wall)) for name, wall in part(summary, "stages").items()]
    known = [(name, wall) for name, wall in walls if wall is not None]
    longest = max([wall for _, wall in known], default=1.0) or 1.0
    return [(name, wall, round(100 * wall / longest, 2)) for name, wall in known]


def all_charts(data: ReportData) -> dict[str, Any]:
    """Everything drawn from the summary and the training log, by name.

    Args:
        data: what to show.

    Returns:
        tracks of horizontal charts, or SVG; empty where nothing was measured.
    """
    return {
        "likelihood": _likelihood(data.summary),
        "detection": _detection(data.summary),
        "deletion": _deletion(data.summary),
        "contribution": _contribution(data.summary),
        "steering": _steering_chart(data.summary),
        "rates": _rates(data.summary),
        "training": _training(data.training_log),
    }


def _likelihood(summary: Mapping[str, Any]) -> list[Track]:
    group = part(summary, "bits_per_byte")
    rows = [
        ("this model", figure(group, "model", is_main=True), "fills in blanks, block after block"),
        ("word pairs", figure(group, "bigram"), "a table of which token follows which"),
        ("word frequencies", figure(group, "unigram"), "knows only how common each token is"),
    ]
    return tracks(rows, main="this model")


def _detection(summary: Mapping[str, Any]) -> list[Track]:
    group = part(summary, "concepts")
    rows = [
        ("this model", figure(group, "auc_macro"), "read off its known concepts"),
        ("bag of words", _bag_of_words(group), "logistic regression on the words of the passage"),
        ("source oracle", figure(group, "auc_source_oracle"), "knows only which source a passage is from"),
        (
            "this model, within one source",
            figure(group, "auc_within_source"),
            "where the source gives nothing away",
        ),
    ]
    return tracks(rows, main="this model", start=0.5)


def _bag_of_words(group: Mapping[str, Any]) -> Figure:
    bounds = part(group, "ci95").get("bag_of_words_auc")
    return figure(
        {"n": group.get("num_scored"), "auc": part(group, "bag_of_words").get("auc"), "ci95": bounds},
        "auc",
        is_main=True,
    )


def _deletion(summary: Mapping[str, Any]) -> list[tuple[str, list[Track]]]:
    named = (
        ("known", "the named concepts"),
        ("discovered", "the concepts it found itself"),
        ("residual", "what no concept holds"),
        ("shuffled", "the named concepts, names shuffled"),
        ("random", "random directions of the same size"),
    )
    rows = {key: [(name, deletion(summary, name, key), meaning) for name, meaning in named] for key, _ in REPLACEMENTS}
    return [
        (label, tracks(rows[key], main="known"))
        for key, label in REPLACEMENTS
        if any(f.value is not None for _, f, _ in rows[key])
    ]


def _contribution(summary: Mapping[str, Any]) -> list[Track]:
    group = part(summary, "contribution")
    rows = [
        ("known", figure(group, "known"), "named concepts"),
        ("known, from context", figure(group, "known_context"), "after taking each part's average away"),
        ("discovered", figure(group, "discovered"), "concepts it found itself"),
        ("residual", figure(group, "residual"), "the rest"),
    ]
    return tracks(rows)


def _steering_chart(summary: Mapping[str, Any]) -> dict[str, Any]:
    steering = part(summary, "steering")
    common = [item for item in steering.get("curve") or [] if isinstance(item, Mapping)]
    lines = []
    for style, (name, label) in enumerate(VARIANTS):
        own = part(steering, name).get("curve") or [item for item in common if item.get("variant", "after") == name]
        lines.append(Series(label, tuple(point for item in own if (point := _curve_point(item))), style))
    svg = line_chart(
        lines,
        "Share of texts in which a judge finds the concept, against how much less likely the text became",
        "perplexity, × the unsteered text's",
        "concept found",
        is_log_x=True,
        y_start=0.0,
        guides=(1.25, 3.0),
    )
    return {"svg": svg, "lines": [line for line in lines if line.points]}


def _curve_point(item: Mapping[str, Any]) -> Point | None:
    hit, ratio = figure(item, "hit", is_main=True), number(item.get("perplexity_ratio"))
    if hit.value is None or not ratio or ratio < 0:
        return None
    strength = decimals(item.get("strength"), 2)
    label = f"strength {strength}: found in {hit.value:.0%}, perplexity × {ratio:.2f}"
    return Point(ratio, hit.value, hit.low, hit.high, label)


def _rates(summary: Mapping[str, Any]) -> list[tuple[str, list[Track]]]:
    steering = part(summary, "steering")
    names = (
        ("target", "the concept turned up"),
        ("unsteered", "nothing touched"),
        ("random", "another concept turned up"),
        ("carrying", "nothing touched, on prompts about the concept"),
        ("suppressed", "the concept turned down, on the same prompts"),
        ("suppressed_random", "another concept turned down, on the same prompts"),
    )
    tables = []
    for variant, label in VARIANTS:
        group = part(steering, variant)
        rows = [(name.replace("_", ", "), figure(group, name), meaning) for name, meaning in names]
        rows = [row for row in rows if row[1].value is not None]
        if rows:
            tables.append((label, tracks(rows, main="target")))
    return tables


def _training(log: Iterable[TrainingPoint]) -> Markup:
    points = tuple(Point(float(p.tokens), p.loss) for p in log if p.loss is not None and number(p.loss) is not None)
    step = max(len(points) // 240, 1)
    return line_chart(
        [Series("language loss", points[::step])],
        "Language loss while training",
        "tokens seen",
        "nats per masked token",
    )
