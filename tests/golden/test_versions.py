"""New golden values need a new version of their stage: results made earlier are then remade."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from layerwise.run.keys import VERSIONS

HERE = Path(__file__).parent
RECORD = HERE / "versions.json"
# Stages whose values are kept under another name.
NAMES = {"images": "corpus"}


def digests() -> dict[str, str]:
    """The hash of all golden values of each stage."""
    found: dict[str, hashlib._Hash] = {}
    for path in sorted((HERE / "values").glob("*.csv")):
        stage = path.name.partition(".")[0]
        digest = found.setdefault(NAMES.get(stage, stage), hashlib.sha256())
        digest.update(path.read_bytes())
    return {stage: digest.hexdigest()[:16] for stage, digest in found.items()}


def record() -> None:
    """Write the versions and hashes of all stages."""
    rows = {stage: [VERSIONS[stage], digest] for stage, digest in digests().items()}
    RECORD.write_text(json.dumps(rows, indent=1) + "\n")


def test_changed_values_have_a_new_version() -> None:
    known = json.loads(RECORD.read_text())
    for stage, digest in digests().items():
        version, recorded = known[stage]
        assert digest == recorded or VERSIONS[stage] > version, (
            f"The golden values of {stage} changed: raise its version in "
            "layerwise/run/keys.py, then run python -m tests.golden.regenerate --versions"
        )
        assert digest == recorded, "run python -m tests.golden.regenerate --versions"
