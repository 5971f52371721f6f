# What the rules share: the checked config, the plan made from it, and parameters by name.
#
# Every rule has a `key` among its parameters: a hash over all that its result depends on (see
# layerwise.plan). That decides what runs again. The profile takes the times of files out of it:
# a file that is newer but has the checksum it had counts as unchanged.

import json
import re
from pathlib import Path

from snakemake.exceptions import WorkflowError

from layerwise.config import complete, read_schema
from layerwise.errors import LayerwiseError
from layerwise.files import replacing
from layerwise.paths import decode, encode
from layerwise.plan import MARKER, Plan

SCHEMA = Path(workflow.basedir) / "schemas" / "config.schema.yaml"
SCRIPTS = Path(workflow.basedir).parent / "scripts"


def as_json(value):
    return json.dumps(value, sort_keys=True)


try:
    config = complete(config, read_schema(SCHEMA))
    PLAN = Plan(config)
    PLAN.check_sources()
except LayerwiseError as error:
    raise WorkflowError(str(error))

RESULTS = config["results"]
# How a job runs, not what it computes: no parameter, so that a change reruns nothing.
MACHINE = as_json({key: config["extract"][key] for key in ("device", "batch_tokens")})
ON_GPU = config["extract"]["device"] != "cpu"


wildcard_constraints:
    model=r"[^/]+",
    revision=r"[^/]+",
    corpus=r"[^/]+?(?<!\.views)(?<!\.prompts)",
    task=r"[^/]+",
    study="|".join(re.escape(encode(study)) for study in config["studies"]),
    published=r"[^/]+",


def grows(base):
    """Memory or minutes that grow with each attempt."""

    def by_attempt(wildcards, attempt):
        return base * attempt

    return by_attempt


LONGEST_COMMAND = 200  # files; a shell takes 128 KiB in one command
LISTS = Path(".snakemake") / "lists"


def table_arguments(name, tables):
    """Options that name the tables a script reads, or a file that lists them if they are many."""
    parts = [part for table, files in tables.items() for part in (f"--{table}", *files)]
    if len(parts) <= LONGEST_COMMAND:
        return parts
    LISTS.mkdir(parents=True, exist_ok=True)
    target = LISTS / f"{encode(name)}.txt"
    with replacing(target) as partial:
        partial.write_text("\n".join(parts))
    return [f"@{target}"]


def model_of(wildcards):
    return decode(wildcards.model)


def revision_of(wildcards):
    return decode(wildcards.revision)


def corpus_of(wildcards):
    return decode(wildcards.corpus)


def task_of(wildcards):
    return decode(wildcards.task)


def study_of(wildcards):
    return decode(wildcards.study)


def model_spec(wildcards):
    return as_json(PLAN.model_spec(model_of(wildcards)))


def model_folder(wildcards):
    """The marker of the model's folder, if a rule has yet to make it.

    A training writes all checkpoints of a model in one job. If that job runs again because one
    more is wanted, the ones that are there with the right key must not run their jobs again.
    """
    marker = PLAN.model_marker(model_of(wildcards), revision_of(wildcards))
    return [marker] if marker else []
