# The config, the keys of its files, and the input functions that rules share.

import atexit
import os
import re
import shlex
import sys
from functools import partial
from pathlib import Path

from snakemake.exceptions import WorkflowError

# The library next to the workflow; a module from a git repository has none.
FOLDER = workflow.current_basedir.get_path_or_uri(secret_free=True)
LIBRARY = Path(FOLDER).parents[1] / "lib"
if LIBRARY.is_dir():
    sys.path.insert(0, str(LIBRARY))

from layerwise import addons
from layerwise.config import Config
from layerwise.errors import LayerwiseError
from layerwise.names import decode, encode
from layerwise.project import ROOT, export_library, rules_of
from layerwise.run.plan import Plan, model_folder
from layerwise.run.resources import LONGEST, Requests
from layerwise.run.snakemake import (
    Stale,
    claim,
    config_file,
    config_of_run,
)
from layerwise.run.validate import log_unused, read_valid

export_library()
ENVIRONMENT = "../../envs/environment.yaml"
STALE = Stale(workflow)
if workflow.is_main_process:
    try:
        PLAN = read_valid(config, workflow.configfiles)
        STALE.check(PLAN.config, FOLDER)
    except LayerwiseError as error:
        sys.exit(str(error))
    log_unused(PLAN)
    STALE.prepare(config, PLAN)
else:
    PLAN = Plan(Config.of(config_of_run(config)))

CONFIG = PLAN.config
REQUESTS = Requests(PLAN)
REVISIONS_OF_MODEL = {
    model: set(entry.revisions) for model, entry in CONFIG.models.items()
}
STUDIES = [encode(study) for study in CONFIG.studies]


@atexit.register
def warn_of_other_versions(say=partial(print, file=sys.stderr)):
    """Warn once; of a module, a dry run or a run without jobs at the exit."""
    if message := STALE.warning(CONFIG.results):
        say(message)


onstart:
    warn_of_other_versions(logger.warning)
    # Inspection (--dag, --summary, --unlock) and a run without jobs leave the last run's.
    try:
        if killed := claim(Path(CONFIG.results)):
            logger.warning(killed)
    except LayerwiseError as error:
        sys.exit(str(error))
    STALE.start(config, PLAN)


onerror:
    STALE.forget_failed()


def one_of(names):
    """A pattern that matches these names alone."""
    return "|".join(re.escape(encode(name)) for name in names) or "(?!)"


wildcard_constraints:
    model=one_of(CONFIG.models),
    revision="[^/]+",  # there may be ten thousand
    corpus=one_of(CONFIG.corpora),
    study=one_of(CONFIG.studies),
    published=one_of(CONFIG.published),
    task="[^/]+",


def names(wildcards):
    """The config's names for wildcards."""
    found = {name: decode(value) for name, value in wildcards.items()}
    if (
        "revision" in found
        and found["revision"] not in REVISIONS_OF_MODEL[found["model"]]
    ):
        sys.exit("{model} has no revision {revision} in the config.".format(**found))
    return found


def key(stage, **given):
    """The key of a job's output; `given` has the names that are no wildcards of the rule."""

    def key_of_job(wildcards):
        try:
            return getattr(PLAN.keys, stage)(**names(wildcards), **given)
        except LayerwiseError as error:
            raise WorkflowError(str(error))

    return key_of_job


def result(path, wildcards):
    """A path of the results folder with its wildcards filled in."""
    return path.replace("<results>", CONFIG.results).format(**dict(wildcards.items()))


def rerun_if_stale(stage, *paths, **given):
    """An input function without inputs: it forces the job if the file of an output carries another
    key. A job's `params.key` is compared with Snakemake's records alone."""

    def force(wildcards):
        if workflow.is_main_process:
            # Keys decide, not times. CONFIG.recipes is keyed by folder.
            STALE.let_keys_decide(CONFIG.results, *CONFIG.recipes)
            wanted = key(stage, **given)(wildcards)
            for path in paths:
                STALE.force_if_other_key(stage, result(path, wildcards), wanted)
        return []

    return force


def study_tables(*tables):
    """The tables that a study reads: those named here, or all that its kind needs."""

    def paths(wildcards):
        study = PLAN.studies[decode(wildcards.study)]
        return [path for table in tables or study.needs for path in study.files(table)]

    return paths


def corpus_files(wildcards):
    """The files that a corpus is selected from, if there are any."""
    corpus = decode(wildcards.corpus)
    results = PLAN.corpus_results(corpus)
    # Of generated texts, the prompts are the input of the model that writes them.
    return (
        results if corpus in PLAN.generated else [*PLAN.corpus_files(corpus), *results]
    )


def task_files(wildcards):
    """The local data of all tasks that a model is scored on at a checkpoint."""
    tasks = PLAN.tasks[decode(wildcards.model), decode(wildcards.revision)]
    own = [file for task in tasks for file in PLAN.task_files(task)]
    return list(
        dict.fromkeys([*own, *(f for t in tasks for f in PLAN.task_results(t))])
    )


def request(method, *wanted):
    """A method of `Requests` on some of a job's wildcards, its attempt and its threads."""

    def ask(wildcards, attempt=1, threads=1):
        known = {**names(wildcards), "attempt": attempt, "threads": threads}
        return getattr(REQUESTS, method)(**{name: known[name] for name in wanted})

    return ask


def script(name, options):
    """The command of a job, which reads the config of the run."""
    path = os.path.relpath(ROOT / "scripts" / f"{name}.py")
    command = (
        f"python {shlex.quote(path)} --config {shlex.quote(str(config_file(config)))}"
    )
    command = command.replace("{", "{{").replace("}", "}}")
    return f"{command} {options} --threads {{threads}} --log {{log:q}} --key {{params.key}}"
