"""New golden values need a new version of their stage: results made earlier are then remade."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from layerwise import addons
from layerwise.run.plan import STAGES

HERE = Path(__file__).parent
RECORD = HERE / "versions.json"
# Stages whose values are kept under another name.
NAMES = {"images": "corpus"}


def digests() -> dict[str, str]:
    """The hash of the golden values of each stage, and of each metric."""
    hashes: dict[str, hashlib._Hash] = {}
    for path in sorted((HERE / "values").glob("*.csv")):
        stage = path.name.partition(".")[0]
        stage = NAMES.get(stage, stage)
        header, *rows = path.read_text(encoding="utf-8").splitlines(keepends=True)
        column = header.strip().split(",").index("metric") if stage == "metrics" else None
        for row in [header, *rows] if column is None else rows:
            name = stage if column is None else f"{stage}.{row.split(',')[column]}"
            hashes.setdefault(name, hashlib.sha256()).update(row.encode())
    return {name: digest.hexdigest()[:16] for name, digest in sorted(hashes.items())}


def version_of(name: str) -> int:
    """The version of a stage, or of the stage of a metric."""
    addons.load("stages")
    stage = name.partition(".")[0]
    return STAGES["score" if stage == "evaluate" else stage].version


def record() -> None:
    """Write the versions and hashes of all stages."""
    rows = {name: [version_of(name), digest] for name, digest in digests().items()}
    RECORD.write_text(json.dumps(rows, indent=1) + "\n")


def test_changed_values_have_a_new_version() -> None:
    known = json.loads(RECORD.read_text())
    for name, digest in digests().items():
        version, recorded = known.get(name, (0, ""))
        assert digest == recorded or version_of(name) > version, (
            f"The golden values of {name} changed: raise its stage's version in "
            "layerwise/run/plan.py, then run python -m tests.golden.regenerate --versions"
        )
        assert digest == recorded, "run python -m tests.golden.regenerate --versions"
