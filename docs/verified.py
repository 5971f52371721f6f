"""Verify tiny random models of every family of the tests: docs/verified.csv.

`python docs/verified.py` verifies all, `python docs/verified.py llama bert` some. Real models are
added by `layerwise verify MODEL --table docs/verified.csv`. `make regenerate` writes the page.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS.parent / "tests"))

from helpers import tiny, tiny_audio, tiny_images  # noqa: E402

from tools import verify  # noqa: E402

TABLE = DOCS / "verified.csv"
# Where each family is saved by.
SAVES = {
    **dict.fromkeys((*tiny.FAMILIES, *tiny.OTHER), tiny.save),
    **dict.fromkeys(tiny_images.FAMILIES, tiny_images.save),
    **dict.fromkeys(tiny_audio.FAMILIES, tiny_audio.save),
}


def main() -> None:
    """Verify families."""
    for family in SAVES if len(sys.argv) == 1 else [f for f in sys.argv[1:] if f in SAVES]:
        with tempfile.TemporaryDirectory() as folder:
            saved = SAVES[family](family, Path(folder) / family)
            row = verify.verify(saved, name=family, weights="random")
        verify.record(TABLE, [row])
        sys.stderr.write(f"{family}: {row.get('hidden_states') or row['refused']}\n")


if __name__ == "__main__":
    main()
