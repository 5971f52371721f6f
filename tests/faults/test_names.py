"""Names of all kinds, through the real workflow: to paths and back, and nothing elsewhere."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from broken import Faulty, config, sentences, unbroken
from same_values import assert_same

from layerwise.names import decode

Tree = dict[str, tuple[int, int]]

MODEL, STEPS = "org/second v1.0 (no. 2)".replace("(", "+").replace(")", "+"), "release/2.0 rc"
CORPUS, STUDY = "my corpus.v2/a", "both. of them/x"


@pytest.fixture
def project(tmp_path: Path) -> Faulty:
    for part in ("home", "tmp"):
        (tmp_path / part).mkdir()
    return Faulty(tmp_path / "work" / "project")


def everything(folder: Path) -> Tree:
    """Every file below a folder but those in the results, and in Snakemake's own folder."""
    found = {}
    for path in folder.rglob("*"):
        inside = path.relative_to(folder).parts
        ours = inside[:2] == ("work", "project") and inside[2:3] in [("results",), (".snakemake",)]
        if path.is_file() and not ours and "__pycache__" not in inside:
            state = path.stat()
            found["/".join(inside)] = (state.st_size, state.st_mtime_ns)
    return found


def elsewhere(tmp_path: Path) -> dict[str, str]:
    """An environment with a home and a folder for temporary files of its own."""
    home = str(tmp_path / "home")
    return {"HOME": home, "XDG_CACHE_HOME": f"{home}/.cache", "TMPDIR": str(tmp_path / "tmp")}


def odd() -> dict[str, Any]:
    """The usual config under other names."""
    made = config()
    models = made["models"]
    made["models"] = {
        "a/first.": models["first"],
        MODEL: {"source": {"folder": "models/step0"}, "revisions": [STEPS, "main"]},
    }
    made["corpora"] = {CORPUS: made["corpora"]["mine"]}
    del made["nano"], made["studies"]
    made["studies"] = {STUDY: {"kind": "metric_vs_score", "models": ["a/first.", MODEL]}}
    return made


def test_odd_names_reach_the_end_and_nothing_is_written_elsewhere(
    project: Faulty, tmp_path: Path
) -> None:
    project.write(odd())
    before = everything(tmp_path)
    status, output = project.try_snakemake(**elsewhere(tmp_path))
    assert status == 0, output[-5000:]
    after = everything(tmp_path)
    new = {name for name, state in after.items() if before.get(name) != state}
    outside = {name for name in new if not name.startswith(("home/.cache/", "home/.config/"))}
    assert not outside
    assert before.keys() <= after.keys()
    tables = sorted((project.results / "metrics").glob("*/*/*.parquet"))
    tables = [t for t in tables if not t.name.endswith(".prompts.parquet")]
    assert len(tables) == 2
    for path in tables:
        names = [decode(part) for part in path.relative_to(project.results / "metrics").parts]
        about = pd.read_parquet(path)[["model", "revision", "corpus"]].drop_duplicates()
        assert about.to_numpy().tolist() == [[*names[:2], names[2].removesuffix(".parquet")]]
    assert {decode(p.name) for p in (project.results / "metrics").iterdir()} == {"a/first.", MODEL}
    drawn = {decode(p.stem) for p in (project.results / "tables").glob("*.csv")}
    assert drawn == {STUDY}
    # The same computation as under a plain name.
    plain, same = "metrics/first/main/mine.parquet", tables[0]
    columns = ["layer", "metric", "protocol", "tokens", "alpha", "normalization", "value", "n"]
    assert_same({"t": pd.read_parquet(same)[columns]}, {"t": unbroken()[plain][columns]})
    assert "Nothing to be done" in project.snakemake()


def renamed(section: str, name: str) -> dict[str, Any]:
    made = copy.deepcopy(config())
    if section == "revisions":
        made["models"]["first"]["revisions"] = [name]
    elif section == "tasks":
        made["tasks"] = [*made["tasks"], name]
    elif section == "results":
        made["results"] = name
    else:
        made[section][name] = next(iter(made[section].values()))
    return made


@pytest.mark.parametrize(
    ("section", "name"),
    [
        ("models", "../../x"), ("models", "/etc/x"), ("models", "."), ("models", ""),
        ("models", "a\0b"), ("models", "m" * 300), ("revisions", "../../x"), ("revisions", "/x"),
        ("corpora", "../../x"), ("tasks", "../../x"), ("studies", "a/../../x"),
        ("nano", "../../x"), ("studies", "s" * 300),
    ],
)  # fmt: skip
def test_hostile_names_are_refused(
    section: str, name: str, project: Faulty, tmp_path: Path
) -> None:
    project.write(renamed(section, name))
    before = everything(tmp_path)
    status, output = project.try_snakemake("--dry-run", **elsewhere(tmp_path))
    assert status
    assert "Traceback" not in output
    told = [
        line
        for line in output.splitlines()
        if "cannot be a name" in line or "too long" in line or "U+0000" in line
    ]
    assert len(told) == 1, output
    assert not sentences(output)
    assert everything(tmp_path) == before
    assert not project.results.exists()


def test_hostile_targets_write_nothing_elsewhere(project: Faulty, tmp_path: Path) -> None:
    """Wildcards reach the scripts as names, and none is ever taken for a path."""
    before = everything(tmp_path)
    target = "results/corpora/..%2F..%2Fmine.parquet"
    job = "results/jobs/run_model/first/..%2F..%2Fx/0.json"
    for hostile in (target, job, "../../x.parquet"):
        _, output = project.try_snakemake(hostile, **elsewhere(tmp_path))
        assert "bug in layerwise" not in output
        new = everything(tmp_path).keys() - before.keys()
        assert not [name for name in new if not name.startswith("home/.c")]
