"""New golden values need a new version of their stage: results made earlier are then remade."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pandas as pd
from pydantic_core import to_jsonable_python

from layerwise import addons
from layerwise.config.studies import all_kinds
from layerwise.metrics.registry import all_metrics
from layerwise.run.plan import MACHINE, STAGES
from layerwise.section import Section

HERE = Path(__file__).parent
REMEDY = "run python -m tests.golden.regenerate --versions"
RECORD = HERE / "versions.json"
DEFAULTS = HERE / "defaults.json"
# Stages whose values are kept under another name.
NAMES = {"images": "corpus"}
# Stages that decide the values of others.
DECIDED_BY = {"evaluate": "score", "extract": "pass"}


OF_DEFAULTS = (
    "layerwise.config",
    "layerwise.metrics.",
    "media",
    "papers.choice",
    "papers.questions",
)


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
    return STAGES[DECIDED_BY.get(stage, stage)].version


def defaults() -> dict[str, Any]:
    """The defaults of the config's sections, which keys leave out, and the versions of stages."""
    all_kinds()
    all_metrics()
    addons.media()
    found: dict[str, dict[str, Any]] = {}
    sections = [Section]
    while sections:
        section = sections.pop()
        sections += section.__subclasses__()
        # Tests may define others.
        if section.__module__.startswith(OF_DEFAULTS):
            found[f"{section.__module__}.{section.__name__}"] = {
                name: to_jsonable_python(field.get_default(call_default_factory=True))
                for name, field in section.model_fields.items()
                if name not in MACHINE and not field.is_required()
            }
    addons.load("stages")
    versions = {name: stage.version for name, stage in STAGES.items()}
    return {"versions": dict(sorted(versions.items())), "defaults": dict(sorted(found.items()))}


def check_versions() -> None:
    """Fail if values or defaults changed and no stage's version was raised.

    A key holds what differs from the defaults, so another default would keep old results.
    """
    known = json.loads(RECORD.read_text())
    for name, digest in digests().items():
        version, recorded = known.get(name, (0, ""))
        assert digest == recorded or version_of(name) > version, (
            f"The golden values of {name} changed: raise its stage's version in "
            "layerwise/run/plan.py, then run python -m tests.golden.regenerate --versions"
        )
    known, now = json.loads(DEFAULTS.read_text()), json.loads(json.dumps(defaults()))
    before, after = (pd.json_normalize(d["defaults"], sep="/").iloc[0] for d in (known, now))
    changed = [key for key in before.index.intersection(after.index) if before[key] != after[key]]
    raised = [s for s, v in now["versions"].items() if v > known["versions"].get(s, 0)]
    assert raised or not changed, (
        f"Defaults changed: {changed}; raise the version of the stages that read them in "
        "layerwise/run/plan.py, then run python -m tests.golden.regenerate --versions"
    )


def record() -> None:
    """Write the versions and hashes of all stages, unless a version has still to be raised."""
    check_versions()
    DEFAULTS.write_text(json.dumps(defaults(), indent=1) + "\n")
    rows = {name: [version_of(name), digest] for name, digest in digests().items()}
    RECORD.write_text(json.dumps(rows, indent=1) + "\n")


def test_changes_have_a_new_version_and_are_recorded() -> None:
    check_versions()
    recorded = {name: digest for name, (_, digest) in json.loads(RECORD.read_text()).items()}
    assert recorded.items() >= digests().items(), (
        "run python -m tests.golden.regenerate --versions"
    )
    known = json.loads(DEFAULTS.read_text())
    now = json.loads(json.dumps(defaults()))
    assert now == known, REMEDY
