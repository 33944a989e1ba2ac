"""The tables of `docs/evidence.md`, made from the results: `python experiments/report.py` puts them in place."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tables import rows_in

ROOT = Path(__file__).parents[1]
PAGE, RESULTS = ROOT / "docs" / "evidence.md", ROOT / "docs" / "results"
Row = Mapping[str, str]
WORDS = {
    "base": "the base",
    "plain": "no concept module",
    "ar": "autoregressive, with concepts",
    "ar_plain": "autoregressive, no concept module",
    "no_residual": "no residual at all",
    "no_residual_dropout": "residual never dropped",
    "both_parts_kept": "residual dropped alone, discovered part always kept",
    "known_floor_0": "known forcing 1, to 0 at half of the run",
    "known_floor_half": "known forcing 1, to 0.5, and stays",
    "discovered_floor_half": "discovered forcing 0.9 to 0.5",
    "discovered_floor_0": "discovered forcing 0.9 to 0",
    "discovered_half": "M = 0.5 C (base: 3 C)",
    "discovered_equal": "M = C",
    "dense": "dense U (base: rank 32)",
    "block_8": "block of 8 (base: 32)",
    "block_64": "block of 64",
    "block_256": "block of 256: one block",
    "noise_uniform": "noise uniform from the start (base: low first)",
    "noise_gaussian": "moving Gaussian noise, 0.2 to 0.8",
    "noisy_or": "noisy-or over a chunk (base: log-mean-exp)",
    "reconstruct_labels": "reconstruct h − k of the labels (base: predicted k)",
    "heads_muon": "Muon for the concept heads (base: AdamW)",
}


def ablations(rows: Sequence[Row]) -> list[list[str]]:
    """One line for each run, those of one arm together."""
    head = [
        "arm",
        "seed",
        "loss",
        "bits/byte",
        "concept gain",
        "HSIC",
        "CKA",
        "known",
        "discovered",
        "alignment",
        "known alone",
    ]
    lines = [head]
    for row in sorted(rows, key=lambda row: (list(WORDS).index(row["arm"]), int(row["seed"]))):
        lines.append(
            [
                WORDS[row["arm"]],
                row["seed"],
                _number(row["loss"], 2),
                f"{_number(row['bits_per_byte'], 2)} [{_number(row['bits_low'], 2)}, {_number(row['bits_high'], 2)}]",
                _number(row["concept_gain"], 1),
                _number(row["independence_hsic"], 2),
                _number(row["independence_cka"], 3),
                _number(row["contribution_known"], 2),
                _number(row["contribution_discovered"], 2),
                _number(row["alignment"], 2),
                _number(row["known_alone"], 2),
            ]
        )
    return lines


def steering(rows: Sequence[Row]) -> list[list[str]]:
    """One line for each variant and limit."""
    head = [
        "variant",
        "limit",
        "strength",
        "texts",
        "hits",
        "unsteered",
        "random",
        "difference",
        "perplexity",
        "bits/byte",
        "deaf",
    ]
    lines = [head]
    for row in rows:
        lines.append(
            [
                row["variant"].replace("_", " "),
                f"× {float(row['limit']):g}",
                _number(row["strength"], 2),
                row["texts"],
                *(_number(row[arm], 3) for arm in ("target", "unsteered", "random")),
                f"{float(row['target_minus_unsteered']):+.2f} [{_number(row['low'], 2)}, {_number(row['high'], 2)}]",
                f"× {_number(row['perplexity_ratio'], 2)}",
                f"{_number(row['bits_per_byte'], 2)} [{_number(row['bits_low'], 2)}, {_number(row['bits_high'], 2)}]",
                _number(row["deaf"], 2),
            ]
        )
    return lines


def mixtures(rows: Sequence[Row]) -> list[list[str]]:
    """One line for each mixture."""
    lines = [["mixture", "code ×", "mathematics ×", "tokens", "code", "mathematics", "all else"]]
    for row in rows:
        lines.append(
            [
                row["mixture"].replace("_", " "),
                f"{float(row['code_factor']):g}",
                f"{float(row['math_factor']):g}",
                f"{int(row['tokens']):,}",
                *(_number(row[part], 2) for part in ("code", "math", "prose")),
            ]
        )
    return lines


TABLES: dict[str, Callable[[Sequence[Row]], list[list[str]]]] = {
    "ablations": ablations,
    "steering_phases": steering,
    "mixtures": mixtures,
}


def filled(page: str) -> str:
    """The page with every table as the results give it."""
    for name, make in TABLES.items():
        start, stop = f"<!-- table: {name} -->\n", "<!-- /table -->"
        if start in page:
            before, _, rest = page.partition(start)
            _, _, after = rest.partition(stop)
            page = before + start + _markdown(make(rows_in(RESULTS / f"{name}.csv"))) + stop + after
    return page


def _markdown(lines: Sequence[Sequence[str]]) -> str:
    head, *rest = lines
    return "".join("| " + " | ".join(line) + " |\n" for line in (head, ["---"] * len(head), *rest))


def _number(text: str, digits: int) -> str:
    return f"{float(text):.{digits}f}" if text else "–"


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
