"""Pages in a real browser: Chromium without a window, and what a script finds in them."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
NEEDS_CHROMIUM = pytest.mark.skipif(
    CHROMIUM is None, reason="wants Chromium (apt-get install chromium)"
)

# Errors count from the first script on.
WATCH = """<script>window.faults = [];
addEventListener("error", (e) => faults.push(String(e.message)));
addEventListener("unhandledrejection", (e) => faults.push(String(e.reason)));
addEventListener("securitypolicyviolation", (e) => faults.push(e.blockedURI));</script>"""
TELL = """<script>%s
const answer = document.createElement("pre");
answer.id = "told";
find().catch((error) => faults.push(String(error))).then((found) => {
  answer.textContent = JSON.stringify({ found, faults });
  document.body.append(answer);
});</script>"""
TOLD = re.compile(r'<pre id="told">(.*?)</pre>', re.DOTALL)


def shown(page: Path, profile: Path, *options: str) -> str:
    """The page's HTML after its scripts have run."""
    done = subprocess.run(
        [
            str(CHROMIUM),
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            *options,
            f"--user-data-dir={profile}",
            "--dump-dom",
            page.as_uri(),
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return done.stdout


def asked(page: Path, folder: Path, script: str, *options: str) -> Any:
    """What a script finds in a page that has loaded.

    Parameters
    ----------
    folder : Path
        Of the test's own.
    script : str
        The body of an async function; it runs after the page's own scripts, and what it returns
        comes back by way of JSON. One that waits wants the option ``--virtual-time-budget``.

    Raises
    ------
    AssertionError
        If anything in the page failed, or was blocked.
    """
    content = page.read_text(encoding="utf-8")
    content = content.replace("<head>", f"<head>{WATCH}", 1)
    before, found, after = content.rpartition("</body>")
    assert found
    copy = page.with_name("asked.html")
    copy.write_text(
        f"{before}{TELL % f'async function find() {{ {script} }}'}</body>{after}", encoding="utf-8"
    )
    seen = TOLD.search(shown(copy, folder / "profile", *options))
    assert seen, "the page's script did not come to its end"
    told = json.loads(html.unescape(seen[1]))
    assert told["faults"] == []
    return told["found"]
