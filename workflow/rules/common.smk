# The config, the keys of its files, and the input functions that rules share.

import json
import os
import re
import shlex
import sys
from pathlib import Path

from snakemake.exceptions import WorkflowError

# The library next to the workflow, whatever is installed.
LIBRARY = Path(workflow.basedir).parent / "lib"
if LIBRARY.is_dir():
    sys.path.insert(0, str(LIBRARY))

from layerwise.config import Config
from layerwise.config.models import is_converted
from layerwise.errors import LayerwiseError
from layerwise.io.files import replacing
from layerwise.names import decode, encode
from layerwise.project import export_library
from layerwise.run import resources
from layerwise.run.plan import Plan
from layerwise.run.stale import marker, renew_marker
from layerwise.run.validate import log_unused, read_valid

export_library()
SCRIPTS = os.path.relpath(Path(workflow.basedir).parent / "scripts")
ENVIRONMENT = "../../envs/environment.yaml"

if workflow.is_main_process:
    try:
        PLAN = read_valid(config, workflow.configfiles)
    except LayerwiseError as error:
        sys.exit(str(error))
    log_unused(PLAN)
    renew_marker(Path(PLAN.config.results))
else:
    PLAN = Plan(Config.of(config))

CONFIG = PLAN.config
STUDIES = [encode(study) for study in CONFIG.studies]
SNAPSHOT = f"{CONFIG.results}/config.json"


# Jobs read the config that the run was started with.
onstart:
    with replacing(Path(SNAPSHOT)) as partial:
        partial.write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")


def one_of(names):
    """A pattern that matches these names alone."""
    return "|".join(re.escape(encode(name)) for name in names) or "(?!)"


wildcard_constraints:
    model=one_of(CONFIG.models),
    revision=one_of(
        dict.fromkeys(r for m in CONFIG.models.values() for r in m.revisions)
    ),
    corpus=one_of(CONFIG.corpora),
    study=one_of(CONFIG.studies),
    published=one_of(CONFIG.published),


def names(wildcards):
    """The config's names for wildcards."""
    return {name: decode(value) for name, value in wildcards.items()}


def key(stage):
    """The key of a job's output: Snakemake reruns the job when it changes."""

    def of(wildcards):
        try:
            return getattr(PLAN.keys, stage)(**names(wildcards))
        except LayerwiseError as error:
            raise WorkflowError(str(error))

    return of


def stale(stage, path):
    """A marker newer than any output if the file exists with another key; else nothing.

    This covers results that were copied without `.snakemake`.
    """

    def of(wildcards):
        file = path.replace("<results>", CONFIG.results).format(
            **dict(wildcards.items())
        )
        return marker(Path(file), key(stage)(wildcards))

    return of


def model_files(wildcards):
    """The model's folder if the workflow makes it: trained here or converted."""
    model, revision = decode(wildcards.model), decode(wildcards.revision)
    if model in CONFIG.nano:
        return f"{CONFIG.results}/nano/{wildcards.model}/{wildcards.revision}/layerwise.json"
    if is_converted(CONFIG.models[model].source):
        return f"{CONFIG.results}/converted/{wildcards.model}/{wildcards.revision}/layerwise.json"
    return []


def study_tables(*tables):
    """The tables that a study reads: those named here, or all that its kind needs."""

    def of(wildcards):
        study = PLAN.studies[decode(wildcards.study)]
        return [path for table in tables or study.needs for path in study.files(table)]

    return of


def model_memory(wildcards, attempt):
    """Megabytes for a job that loads a model; grows with each attempt."""
    return attempt * resources.model_mb(CONFIG, decode(wildcards.model))


def script(name):
    """The start of a job's command: its script and the config that the run was started with."""
    return (
        f"python {shlex.quote(f'{SCRIPTS}/{name}.py')} --config {shlex.quote(SNAPSHOT)}"
    )


def study_activations(wildcards):
    """The activations of all models of a study on its one corpus."""
    return PLAN.studies[decode(wildcards.study)].files("activations")


def explored_tables(wildcards):
    """The tables that the explorer shows."""
    of_origin = PLAN.explored.values()
    return [path for tables in of_origin for paths in tables.values() for path in paths]


def report_table(name, points):
    """A table of the report, if there are checkpoints to show in it."""
    return f"{CONFIG.results}/report/{name}.csv" if points else []


def published_files(wildcards):
    """The tables of other work that a study draws."""
    entry = CONFIG.published[decode(wildcards.published)]
    return [path for path in (entry.scores, entry.metrics) if path]


def texts_of_corpus(wildcards):
    """The files that a corpus is selected from, if there are any."""
    source = CONFIG.corpora[decode(wildcards.corpus)].source
    if getattr(source, "package", None) == "wikipedia":
        return f"{CONFIG.results}/texts/wikipedia.parquet"
    if hasattr(source, "task"):
        return PLAN.task_inputs(source.task)
    return getattr(source, "file", None) or []


def task_data(wildcards):
    """The local data of all tasks that a model is scored on at a checkpoint."""
    tasks = PLAN.tasks[decode(wildcards.model), decode(wildcards.revision)]
    files = [file for task in tasks for file in PLAN.task_inputs(task)]
    return list(dict.fromkeys(files))


def keep(path):
    """Activations are temporary if the config says so."""
    return path if CONFIG.extract.keep_activations else temp(path)


def rule_name(verb, model):
    """A name of a rule about one model."""
    return "_".join([verb, re.sub(r"\W", "_", model)])


def nano_folders(model):
    """The folders of the checkpoints of a model that is trained here."""
    revisions = CONFIG.models[model].revisions
    return [f"{CONFIG.results}/nano/{encode(model)}/{encode(r)}" for r in revisions]
