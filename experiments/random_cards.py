"""Random cards of an atlas as a table, to be read as a stranger would: is the concept recognised at once?

    python experiments/random_cards.py ATLAS [--number 50] [--seed 0]

Only what a card says: name, description, characteristic words. Prints Markdown.
"""

import argparse
import random
from pathlib import Path

from vitrail.atlas.library import ConceptLibrary


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("atlas", type=Path)
    parser.add_argument("--number", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    cards = [card for card in ConceptLibrary.load(options.atlas).cards if card.is_automatic]
    chosen = random.Random(options.seed).sample(cards, min(options.number, len(cards)))
    print("| name | description | words |\n|---|---|---|")
    for card in chosen:
        about = card.description.removeprefix(f"Passages on {card.name}").lstrip(": ").rstrip(".")
        print(f"| {card.name} | {about} | {', '.join(card.words[:6])} |")


if __name__ == "__main__":
    main()
