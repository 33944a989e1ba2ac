"""Writes the table of sizes of docs/training.md: what the dial sets from 1 M to 8 B.

    python scripts/dial_table.py [PAGE]

The table stands between two comments of the page and is made anew there. A test compares the two.
"""

import sys
from pathlib import Path

from vitrail.train.dial import Dial, dial
from vitrail.train.plan import describe_plan
from vitrail.train.settings import TrainSettings

_PAGE = Path(__file__).parents[1] / "docs" / "training.md"
_SIZES = ("1M", "1.3M", "3M", "10M", "30M", "100M", "300M", "1B", "3B", "8B")
_START, _STOP = "<!-- dial: scripts/dial_table.py -->", "<!-- /dial -->"
_HEAD = (
    "| `size` | parameters | width x layers | heads (kv) | block, length | known | rank | kept | concepts | "
    "matrix rate | batch, tokens | tokens | FLOPs |"
)


def _row(size: str, found: Dial) -> str:
    plan = describe_plan(TrainSettings.parse({"size": size}))
    config, optim = found.config, found.run["optim"]
    cells = [
        f"`{size}`",
        f"{found.parameters / 1e6:,.1f} M",
        f"{config.width} x {config.num_layers}",
        f"{config.num_heads} ({config.kv_heads})",
        f"{config.block}, {config.max_length:,}",
        f"{config.num_concepts:,}",
        f"{config.discovered_rank}",
        f"{config.top_k_known}, {config.top_k_discovered}",
        f"{plan.parameters.concept_share:.1%}",
        f"{optim['matrices']} {optim['matrix_rate']:g}",
        f"{plan.batch_tokens:,}",
        f"{plan.tokens:.2g}",
        f"{plan.flops:.2g}",
    ]
    return "| " + " | ".join(cells) + " |"


def _table() -> str:
    rows = [_row(size, dial(size=size)) for size in _SIZES]
    return "\n".join([_HEAD, "|" + "---|" * (_HEAD.count("|") - 1), *rows])


def main(page: Path) -> None:
    """Replace the table of a page.

    Args:
        page: Markdown with the two comments.
    """
    text = page.read_text(encoding="utf-8")
    before, after = text.split(_START)[0], text.split(_STOP)[1]
    page.write_text(f"{before}{_START}\n{_table()}\n{_STOP}{after}", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else _PAGE)
