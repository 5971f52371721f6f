"""The workflow's scripts as modules."""

import importlib.util
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).parents[2] / "scripts"


def script(name: str, folder: Path = SCRIPTS) -> Any:
    """Import a script, such as ``convert_model``, without running it."""
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
