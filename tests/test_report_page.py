"""Snakemake's report, clicked through in a real browser."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from browser import NEEDS_CHROMIUM, asked

from layerwise.project import ROOT

CLICKS = """
const wait = (ms) => new Promise((done) => setTimeout(done, ms));
const links = (text) => [...document.querySelectorAll("a")].filter((a) => a.textContent.trim() === text);
await wait(500);
const title = document.querySelector("h1.title, .document h1, h1:last-of-type");
const heads = [...document.querySelectorAll("h1")].map((h) => [h.textContent, h.getBoundingClientRect().top]);
const seen = { heads, height: innerHeight, menu: [...document.querySelectorAll("a")].map((a) => a.textContent) };
links("Figures")[0].click();
await wait(500);
seen.figures = document.body.innerText;
links("Results")[0].click();
await wait(500);
links("Account")[0].click();
await wait(500);
seen.account = document.body.innerText;
return seen;
"""


@NEEDS_CHROMIUM
@pytest.mark.slow
def test_first_page_and_menu(tmp_path: Path) -> None:
    """Of a config without tasks, whose first page names no layer."""
    study = {"kind": "power_law"}
    (tmp_path / "mine.yaml").write_text(
        yaml.safe_dump({"results": "other", "studies": {"law": study}})
    )
    command = [sys.executable, "-c", "from layerwise.app import main; main()"]
    for arguments in (["run", "-c", "mine.yaml", "--cores", "1"], ["report", "-c", "mine.yaml"]):
        done = subprocess.run(
            [*command, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False,
            env={**os.environ, "PYTHONPATH": str(ROOT / "lib")}, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    page = tmp_path / "other" / "report.html"
    # A window as low as a phone's on its side: the page is higher than that.
    seen = asked(page, tmp_path, CLICKS, "--virtual-time-budget=20000", "--window-size=1920,300")
    heads = dict(map(tuple, seen["heads"]))
    (top,) = [t for text, t in heads.items() if "What each layer" in text]
    assert 0 <= top < seen["height"]
    assert {"Figures", "Tables", "Account"} <= set(seen["menu"])
    assert "law" in seen["figures"]
    assert "cost by stage and model" in seen["account"]
