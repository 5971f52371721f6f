"""What `layerwise doctor` prints."""

import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from helpers.forked import LAYERWISE

from tools import doctor


def test_the_doctor_says_what_is_there_and_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in ("models--a--b", "models--c--d", "datasets--e--f"):
        (tmp_path / kind).mkdir()
    told = subprocess.run(
        [sys.executable, *LAYERWISE, "doctor"],
        env={**os.environ, "HF_HUB_CACHE": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 0, told.stderr
    lines = dict(re.split(r":\s+", line, maxsplit=1) for line in told.stdout.splitlines())
    assert version("layerwise") in lines["layerwise"]
    assert version("torch") in lines["Packages"]
    assert f"{tmp_path}: 2 models and 1 data sets" in lines["Cache"]
    assert "HF_HUB_OFFLINE" in lines["Hub"]
    assert "GB free" in lines["Disk"]
    assert len(told.stdout.splitlines()) < 24
    needed = ["torch>=99", "numpy", "nothing-of-this-name; extra == 'audio'", "no; extra == 'dev'"]
    monkeypatch.setattr(doctor, "requires", lambda _: needed)
    missing = {"layerwise": ["torch>=99"], "layerwise[audio]": ["nothing-of-this-name"]}
    assert doctor.missing() == missing
