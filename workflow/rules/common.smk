# The config, the keys of its files, and the input functions that rules share.

import inspect
import re
import sys
from pathlib import Path

from snakemake.exceptions import WorkflowError

# The library next to the workflow; a module from a git repository has none.
FOLDER = Path(inspect.currentframe().f_code.co_filename).parent
LIBRARY = FOLDER.parents[1] / "lib"
if LIBRARY.is_dir():
    sys.path.insert(0, str(LIBRARY))

from layerwise import addons
from layerwise.config import Config
from layerwise.errors import LayerwiseError
from layerwise.names import decode, encode
from layerwise.project import export_library, rules_of
from layerwise.run.plan import Plan, model_folder
from layerwise.run.resources import Requests
from layerwise.run.snakemake import check, claim, config_of_run, start
from layerwise.run.validate import log_unused, read_valid

export_library()
ENVIRONMENT = "../../envs/environment.yaml"
if workflow.is_main_process:
    try:
        PLAN = read_valid(config, workflow.configfiles)
        check(PLAN.config, str(FOLDER))
    except LayerwiseError as error:
        sys.exit(str(error))
    log_unused(PLAN)
else:
    # A job of a cluster: the user may have edited the config since the run began.
    if workflow.modifier.parent_modifier is None:
        config = config_of_run(config)
    PLAN = Plan(Config.of(config))

CONFIG = PLAN.config
REQUESTS = Requests(PLAN)
STUDIES = [encode(study) for study in CONFIG.studies]


onstart:
    # Inspection (--dag, --summary, --unlock) and a run without jobs leave the last run's.
    try:
        if killed := claim(Path(CONFIG.results)):
            logger.warning(killed)
    except LayerwiseError as error:
        sys.exit(str(error))
    start(config, PLAN)


def one_of(names):
    """A pattern that matches these names alone."""
    return "|".join(re.escape(encode(name)) for name in names) or "(?!)"


wildcard_constraints:
    model=one_of(CONFIG.models),
    revision="[^/]+",  # there may be ten thousand
    corpus=one_of(CONFIG.corpora),
    study=one_of(CONFIG.studies),
    published=one_of(CONFIG.published),


def names(wildcards):
    """The config's names for wildcards."""
    given = {name: decode(value) for name, value in wildcards.items()}
    if "revision" in given and not PLAN.has_revision(given["model"], given["revision"]):
        sys.exit("{model} has no revision {revision} in the config.".format(**given))
    return given


def key(stage):
    """The key of a job's output."""

    def key_of_job(wildcards):
        try:
            return PLAN.key(stage, **names(wildcards))
        except LayerwiseError as error:
            raise WorkflowError(str(error))

    return key_of_job


def study_tables(*tables):
    """The tables that a study reads: those named here, or all that its kind needs."""

    def paths(wildcards):
        study = PLAN.studies[decode(wildcards.study)]
        return [path for table in tables or study.needs for path in study.files(table)]

    return paths


def request(method, *wanted):
    """A method of `Requests` on some of a job's wildcards, its attempt and its threads."""

    def ask(wildcards, attempt=1, threads=1):
        known = {**names(wildcards), "attempt": attempt, "threads": threads}
        return getattr(REQUESTS, method)(**{name: known[name] for name in wanted})

    return ask
