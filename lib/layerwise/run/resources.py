"""Requests of jobs: memory, GPUs and threads.

Parameters come from the names of models (``pythia-6.9b``), so nothing is downloaded. The time of
jobs is the profile's.
"""

from __future__ import annotations

import math
from functools import cache

from layerwise.config import Config
from layerwise.models.source import locate
from layerwise.names import size_of
from layerwise.run.plan import Plan

BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
# Parameters of a model whose name has no number and whose weights are not here.
UNKNOWN = 1e9
# Parameters of a model that a recipe makes; until it is there, its size is not known.
MADE = 1e6
# Libraries (a GPU's, too), activations of a batch, two windows of results, and reading the file.
OVERHEAD_MB = 5000
# While weights are loaded, a part of them is in memory twice.
LOADING = 1.25
# Batches in a GPU's memory, in addition to the weights.
BATCHES = 1.2
# Memory of a GPU, for the number of them that a model with device_map: auto asks for.
GPU_GB = 80


class Requests:
    """Requests of a plan's jobs.

    Parameters
    ----------
    plan : Plan
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.config: Config = plan.config

    @cache
    def parameters(self, model: str) -> float:
        """Number of a model's parameters: by its name, or by the size of its local weights."""
        source = self.config.models[model].source
        named = size_of(getattr(source, "hub", "").rpartition("/")[2]) or size_of(model)
        if named:
            return named
        if self.plan.is_to_make(model):
            return MADE
        folder = locate(source, self.config.models[model].revisions[-1]).folder
        files = folder.glob("*.safetensors") if folder else ()
        return sum(file.stat().st_size for file in files) / BYTES["float32"] or UNKNOWN

    def weights_gb(self, model: str) -> float:
        """Gigabytes of a model's weights in memory."""
        return self.parameters(model) * BYTES[self.config.extraction(model).dtype] / 1e9

    def memory_mb(self, model: str, attempt: int = 1) -> int:
        """Megabytes of memory of a job that loads a model; grows with each attempt."""
        return attempt * (OVERHEAD_MB + int(LOADING * self.weights_gb(model) * 1e3))

    def scoring_mb(self, model: str, attempt: int = 1, threads: int = 1) -> int:
        """Megabytes of memory of a job that scores a model: a gigabyte for each process."""
        return self.memory_mb(model, attempt) + attempt * 1000 * (1 + self.scorers(threads))

    @property
    def scoring_threads(self) -> int:
        """Threads of a job that scores, unless a profile sets others."""
        return max(self.config.extract.threads, self.config.scoring.threads)

    def scorers(self, threads: int) -> int:
        """Processes that score in a job of so many threads: all where a profile set more."""
        raised = threads > self.scoring_threads
        return threads if raised else min(threads, self.config.scoring.threads)

    def gpus(self, model: str) -> int:
        """GPUs of a job that runs a model; several where `device_map: auto` spreads it."""
        if self.config.extract.device == "cpu":
            return 0
        if self.config.models[model].device_map is None:
            return 1
        return max(1, math.ceil(BATCHES * self.weights_gb(model) / GPU_GB))

    def priority(self, model: str) -> float:
        """Priority of a job that runs a model, 15 to 16: the largest first, small jobs fill in."""
        return 16 - 1 / (1 + self.parameters(model) / 1e9)
