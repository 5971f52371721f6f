# What the rules share: the checked config, the plan made from it, and parameters by name.
#
# Each rule takes a `key` as a parameter, a hash over all that its result depends on (see
# layerwise.plan). That decides what runs again. The profile takes the times of files out of it:
# a file that is newer but has the checksum it had counts as unchanged.

import json
import os
import re
from pathlib import Path

from snakemake.exceptions import WorkflowError

from layerwise.config import complete, read_schema
from layerwise.errors import LayerwiseError
from layerwise.files import check_writable, replacing
from layerwise.paths import decode, encode
from layerwise.plan import MARKER, Plan
from layerwise.tasks.names import QUICKSTART

SCHEMA = Path(workflow.basedir) / "schemas" / "config.schema.yaml"
SCRIPTS = os.path.relpath(Path(workflow.basedir).parent / "scripts")
ENVIRONMENT = "../../envs/environment.yaml"
# Jobs import the library that lies beside the workflow, whatever environment they run in.
LIBRARY = Path(workflow.basedir).parent / "lib"
shell.prefix(f"export PYTHONPATH={LIBRARY}${{{{PYTHONPATH:+:$PYTHONPATH}}}}; ")


class Untracked:
    """A parameter that says how a job runs, not what it computes: a change reruns nothing.

    Snakemake records parameters of plain types alone.
    """

    def __init__(self, text):
        self.text = text

    def __str__(self):
        return self.text


def as_json(value):
    return json.dumps(value, sort_keys=True)


try:
    config = complete(config, read_schema(SCHEMA))
    PLAN = Plan(config)
    PLAN.check_sources()
except LayerwiseError as error:
    raise WorkflowError(str(error))

RESULTS = config["results"]
MACHINE = Untracked(
    as_json({key: config["extract"][key] for key in ("device", "batch_tokens")})
)
ON_GPU = config["extract"]["device"] != "cpu"


# Of a real run alone: one may well look at results that one cannot write.
onstart:
    try:
        check_writable(Path(RESULTS))
    except LayerwiseError as error:
        raise WorkflowError(str(error))


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
    return PLAN.known("models", decode(wildcards.model))


def revision_of(wildcards):
    return PLAN.known_revision(model_of(wildcards), decode(wildcards.revision))


def corpus_of(wildcards):
    return PLAN.known("corpora", decode(wildcards.corpus))


def task_of(wildcards):
    return PLAN.known("tasks", decode(wildcards.task))


def study_of(wildcards):
    return PLAN.known("studies", decode(wildcards.study))


def model_spec(wildcards):
    return as_json(PLAN.model_spec(model_of(wildcards)))


def model_folder(wildcards):
    """The marker of the model's folder, if a rule has yet to make it.

    A training writes all checkpoints of a model in one job. If that job runs again because one
    more is wanted, the ones that are there with the right key must not run their jobs again.
    """
    marker = PLAN.model_marker(model_of(wildcards), revision_of(wildcards))
    return [marker] if marker else []


# Texts


def corpus_input(wildcards):
    source = config["corpora"][corpus_of(wildcards)]["source"]
    if source.get("package") == "wikipedia":
        return rules.unpack_wikipedia.output
    if "file" in source:
        return source["file"]
    if "task" in source:
        return f"{RESULTS}/tasks/{encode(source['task'])}.texts.parquet"
    return []


def corpus_source(wildcards):
    source = dict(config["corpora"][corpus_of(wildcards)]["source"])
    if source.get("package") == "wikipedia" or "task" in source:
        source["path"] = str(corpus_input(wildcards))
    return as_json(source)


def corpus_part(part):
    def of(wildcards):
        return as_json(config["corpora"][corpus_of(wildcards)][part])

    return of


def corpus_key(wildcards):
    return PLAN.corpus_key(corpus_of(wildcards))


def views_key(wildcards):
    return PLAN.views_key(corpus_of(wildcards))


# Models that a rule makes


def nano_settings(wildcards):
    return as_json(config["nano"][model_of(wildcards)])


def nano_key(wildcards):
    return PLAN.nano_key(model_of(wildcards))


def convert_source(wildcards):
    return as_json(config["models"][model_of(wildcards)]["source"])


def convert_key(wildcards):
    return PLAN.convert_key(model_of(wildcards))


# Extraction


def extract_key(wildcards):
    return PLAN.extract_key(
        model_of(wildcards), revision_of(wildcards), corpus_of(wildcards)
    )


# Metrics


def metrics_key(wildcards):
    return PLAN.metrics_key(
        model_of(wildcards), revision_of(wildcards), corpus_of(wildcards)
    )


# Tasks


def folder_input(wildcards):
    """A task's data, if a rule makes it."""
    task = task_of(wildcards)
    made = task in PLAN.quickstart_tasks
    return [f"{RESULTS}/tasks/{encode(task)}.made"] if made else []


def task_folders(wildcards):
    folder = PLAN.task_folder(task_of(wildcards))
    return as_json({task_of(wildcards): folder} if folder else {})


def texts_key(wildcards):
    return PLAN.texts_key(task_of(wildcards))


def embed_key(wildcards):
    return PLAN.embed_key(
        model_of(wildcards), revision_of(wildcards), task_of(wildcards)
    )


def score_key(wildcards):
    return PLAN.score_key(
        model_of(wildcards), revision_of(wildcards), task_of(wildcards)
    )


# Association


def associate_key(wildcards):
    return PLAN.associate_key(study_of(wildcards))


def choices_key(wildcards):
    return PLAN.choices_key(study_of(wildcards))


def study_metrics(wildcards):
    return PLAN.tables(study_of(wildcards), "metrics")


def study_scores(wildcards):
    return PLAN.tables(study_of(wildcards), "scores")


def association_tables(wildcards):
    tables = {"metrics": study_metrics(wildcards), "scores": study_scores(wildcards)}
    return table_arguments(f"associate.{wildcards.study}", tables)


def published_table(table):
    def of(wildcards):
        return config["published"][decode(wildcards.published)][table]

    return of


def published_key(wildcards):
    return PLAN.published_key(decode(wildcards.published))


# Figures


def study_key(wildcards):
    return PLAN.study_key(study_of(wildcards))


def study_settings(wildcards):
    return as_json(PLAN.study_settings(study_of(wildcards)))


def study_inputs(wildcards):
    """The tables that this kind of study needs, by name."""
    study = study_of(wildcards)
    return {name: PLAN.tables(study, name) for name in PLAN.needs(study)}


def study_files(wildcards):
    return [file for files in study_inputs(wildcards).values() for file in files]


def study_tables(wildcards):
    return table_arguments(f"draw.{wildcards.study}", study_inputs(wildcards))


# Account


def output_folder(wildcards, output):
    return str(Path(output[0]).parent)


def output_grandparent(wildcards, output):
    return str(Path(output[0]).parent.parent)


# Fetching ahead


def hub_model(wildcards):
    entry = config["models"][model_of(wildcards)]
    return as_json({key: value for key, value in entry.items() if key != "revisions"})


def hub_corpus(wildcards):
    return as_json(config["corpora"][corpus_of(wildcards)]["source"])
