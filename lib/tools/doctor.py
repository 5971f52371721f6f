"""What `layerwise doctor` prints: versions, device, cache, disk and missing packages."""

from __future__ import annotations

import os
import platform
import re
import shutil
from collections import defaultdict
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from layerwise.project import ROOT

VERSIONS = ("torch", "transformers", "sentence-transformers", "datasets", "mteb", "snakemake")
NOT_OF_USERS = frozenset({"layerwise[all]", "layerwise[dev]", "layerwise[docs]"})


def facts() -> Iterator[tuple[str, str]]:
    """What to tell of this machine, in lines of a name and a text."""
    import torch
    from huggingface_hub import constants

    yield "layerwise", f"{version('layerwise')}, workflow in {ROOT}"
    yield "Python", f"{platform.python_version()}, {platform.platform()}"
    yield "Packages", ", ".join(f"{name} {installed(name) or 'missing'}" for name in VERSIONS)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    yield "CPU", f"{cores} cores for this process"
    gpus = [torch.cuda.get_device_properties(n) for n in range(torch.cuda.device_count())]
    described = ", ".join(f"{gpu.name} ({gpu.total_memory / 1e9:.0f} GB)" for gpu in gpus)
    yield "GPU", described or f"none that torch {torch.__version__} sees; models run on the CPU"
    cache = Path(constants.HF_HUB_CACHE)
    cached = {kind: len([*cache.glob(f"{kind}--*")]) for kind in ("models", "datasets")}
    in_cache = f"{cached['models']} models and {cached['datasets']} data sets"
    yield "Cache", f"{cache}: {in_cache}, {free(cache)}"
    is_offline = "off: HF_HUB_OFFLINE is set; `layerwise fetch` needs it on"
    yield "Hub", is_offline if constants.is_offline_mode() else f"on, at {constants.ENDPOINT}"
    yield "Disk", f"{Path.cwd()}: {free(Path.cwd())}"
    lacking = missing()
    for what, packages in lacking.items():
        yield "Missing", f"{', '.join(packages)}; run: pip install '{what}'"
    if not lacking:
        yield "Missing", "no package"


def installed(package: str) -> str:
    """The version of a package; empty without it."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def missing() -> dict[str, list[str]]:
    """Packages that are not installed in the version needed, by what would bring them."""
    from packaging.requirements import Requirement

    lacking = defaultdict(list)
    for requirement in map(Requirement, requires("layerwise") or ()):
        extra = re.search(r"extra == ['\"](.+?)['\"]", str(requirement.marker))
        what = f"layerwise[{extra[1]}]" if extra else "layerwise"
        there = installed(requirement.name)
        if what not in NOT_OF_USERS and not (there and there in requirement.specifier):
            lacking[what].append(f"{requirement.name}{requirement.specifier}")
    return dict(lacking)


def free(folder: Path) -> str:
    """The space left where a folder is or will be."""
    while not folder.exists():
        folder = folder.parent
    return f"{shutil.disk_usage(folder).free / 1e9:,.0f} GB free"
