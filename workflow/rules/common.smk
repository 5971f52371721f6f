# The config, the keys of its files, and the input functions that rules share.

import atexit
import os
import re
import shlex
import sys
import time
from functools import cache, partial
from pathlib import Path

from snakemake.exceptions import WorkflowError
from snakemake_interface_storage_plugins.io import Mtime

# The library next to the workflow, whatever is installed. There is none where the workflow is a
# module from a git repository.
FOLDER = workflow.current_basedir.get_path_or_uri(secret_free=True)
LIBRARY = Path(FOLDER).parents[1] / "lib"
if LIBRARY.is_dir():
    sys.path.insert(0, str(LIBRARY))

from layerwise.config import Config
from layerwise.config.corpora import GeneratedTexts, data_of
from layerwise.errors import LayerwiseError
from layerwise.names import decode, encode
from layerwise.project import ROOT, export_library, rules_of
from layerwise.run.plan import Plan, model_folder
from layerwise.run.resources import LONGEST, Requests
from layerwise.run.stale import OTHER_CODE, is_stale, mixed_code, paths_in
from layerwise.run.validate import log_unused, read_valid
from layerwise.run.snapshot import Snapshot
from layerwise.run.storage import Storage
from snakemake_logger_plugin_layerwise import EXPECTED

export_library()
ENVIRONMENT = "../../envs/environment.yaml"
JOINING_MB, JOINING_MINUTES = 4000, 10

STORAGE = Storage(workflow)

if workflow.is_main_process:
    try:
        PLAN = read_valid(config, workflow.configfiles)
        STORAGE.check(PLAN.config, FOLDER)
    except LayerwiseError as error:
        sys.exit(str(error))
    log_unused(PLAN)
    SNAPSHOT = Snapshot(config)
    SNAPSHOT.announce()
    # A dry run writes nothing. Snakemake calls no `onstart` of a module.
    if not workflow.output_settings.dryrun:
        SNAPSHOT.write()
        STORAGE.store(SNAPSHOT.write_latest())
else:
    # The config may have been edited while the job was waiting.
    SNAPSHOT = Snapshot(config).of_run()
    SNAPSHOT.write()
    SNAPSHOT.announce()
    PLAN = Plan(Config.of(SNAPSHOT.given))

CONFIG = PLAN.config
REQUESTS = Requests(PLAN)
REVISIONS = {model: set(entry.revisions) for model, entry in CONFIG.models.items()}
GENERATED = [
    name
    for name, entry in CONFIG.corpora.items()
    if isinstance(entry.source, GeneratedTexts)
]
STUDIES = [encode(study) for study in CONFIG.studies]
SCORING_THREADS = max(CONFIG.extract.threads, CONFIG.scoring.threads)


@atexit.register
def warn_of_other_code(say=partial(print, file=sys.stderr)):
    """Warn once; at the exit of a module, a dry run, or where there is nothing to do."""
    if message := mixed_code():
        say(message)
        OTHER_CODE.clear()


onstart:
    warn_of_other_code(logger.warning)
    for job in workflow.dag.needrun_jobs():
        if job.is_norun:
            continue
        named = {name: decode(value) for name, value in job.wildcards_dict.items()}
        EXPECTED[job.jobid] = job.rule.name, REQUESTS.seconds(job.rule.name, named)


def one_of(names):
    """A pattern that matches these names alone."""
    return "|".join(re.escape(encode(name)) for name in names) or "(?!)"


wildcard_constraints:
    model=one_of(CONFIG.models),
    revision="[^/]+",  # there may be ten thousand
    corpus=one_of(CONFIG.corpora),
    study=one_of(CONFIG.studies),
    published=one_of(CONFIG.published),
    part="[0-9]+",
    task="[^/]+",


def names(wildcards):
    """The config's names for wildcards."""
    found = {name: decode(value) for name, value in wildcards.items()}
    if "revision" in found and found["revision"] not in REVISIONS[found["model"]]:
        raise WorkflowError("{model} has no revision {revision}.".format(**found))
    return found


def key(stage, **given):
    """The key of a job's output: Snakemake reruns the job when it changes.

    `given` has the names that are no wildcards of the rule.
    """

    def of(wildcards):
        try:
            return getattr(PLAN.keys, stage)(**names(wildcards), **given)
        except LayerwiseError as error:
            raise WorkflowError(str(error))

    return of


def result(path, wildcards):
    """A path of the results folder with its wildcards filled in."""
    return path.replace("<results>", CONFIG.results).format(**dict(wildcards.items()))


@cache
def let_keys_decide():
    """Give all results one time in Snakemake's cache: none is newer than another.

    Keys notice changes. A touched or copied file reruns nothing, and none needs a checksum.
    """
    now = Mtime(local=time.time() - 1)
    for folder in (CONFIG.results, *CONFIG.recipes):
        workflow.iocache.mtime.update(dict.fromkeys(paths_in(folder), now))


def stale(stage, *paths, within="", copy_of=None, **given):
    """Run a job again if an output was made for another key; no input.

    This covers results that were copied without `.snakemake`, and stored ones.

    `within` names the file in an output folder that carries the key. `copy_of` is a smaller file
    that carries the key of an output that is too large to be fetched from a storage, as `input`.
    """

    def of(wildcards):
        if not workflow.is_main_process:
            return []
        let_keys_decide()
        for output in (result(path, wildcards) for path in paths):
            if copy_of and STORAGE.is_remote:
                facts = STORAGE.facts(result(copy_of, wildcards))
                facts = facts and {"key": facts.get("input")}
            else:
                facts = STORAGE.facts(f"{output}/{within}" if within else output)
            if within and STORAGE.is_remote:
                # Snakemake must not ask itself: its plugin for S3 takes a folder that was not
                # there for absent from then on.
                exists = facts is not None
                workflow.iocache.exists_in_storage[STORAGE.local(output)] = exists
            wanted = key(stage, **given)(wildcards)
            if facts is not None and is_stale(output, facts, wanted, stage):
                rerun(output)
        return []

    return of


def rerun(output):
    """Let Snakemake run the job of this output, as with --forcerun."""
    workflow.dag.forcefiles.add(STORAGE.local(output))


def always(path):
    """Run a job again whenever its output is asked for; no input."""

    def of(wildcards):
        if STORAGE.is_remote:
            raise WorkflowError(
                "fetch fills this machine's caches; with a storage, jobs fetch what they need."
            )
        if workflow.is_main_process:
            rerun(result(path, wildcards))
        return []

    return of


def users(files):
    """Files of the user as inputs. They are in no storage, unless a recipe makes them.

    Where jobs do not share this machine's files, Snakemake would run all that have such an input
    here; they read the files at their absolute path instead.
    """
    if not STORAGE.is_remote:
        return files
    own = [file for file in files if not CONFIG.recipe_of(file)]
    made = [file for file in files if CONFIG.recipe_of(file)]
    return made + [local(file) for file in own if STORAGE.shares_files]


def model_files(wildcards):
    """The files of a model that the workflow makes: converted, or by a recipe."""
    return files_of_model(decode(wildcards.model), decode(wildcards.revision))


def files_of_model(model, revision):
    """The same by the config's names."""
    converted = model_folder(CONFIG, model, revision)
    return [converted] if converted else sources_of_model(model, revision)


def sources_of_model(model, revision):
    """The files of a model that recipes make."""
    return PLAN.made_files(CONFIG.models[model], revision)


def sources_of_corpus(wildcards):
    """The files of a corpus that recipes make."""
    return PLAN.made_files(CONFIG.corpora[decode(wildcards.corpus)])


def writer_files(wildcards):
    """As `model_files`, of the model that writes a corpus."""
    model = writer(wildcards)
    return files_of_model(model, CONFIG.models[model].revisions[-1])


def writer(wildcards):
    """The model that writes a corpus."""
    return CONFIG.corpora[decode(wildcards.corpus)].source.generate.model


def study_tables(*tables):
    """The tables that a study reads: those named here, or all that its kind needs."""

    def of(wildcards):
        study = PLAN.studies[decode(wildcards.study)]
        return [path for table in tables or study.needs for path in study.files(table)]

    return of


def model_memory(wildcards, attempt):
    """Megabytes for a job that loads a model; grows with each attempt."""
    return attempt * REQUESTS.memory_mb(decode(wildcards.model))


def gpus(wildcards, attempt):
    """The GPUs of a job that runs a model."""
    return REQUESTS.gpus(decode(wildcards.model))


def extract_minutes(wildcards, attempt):
    """The time of an extraction; grows with each attempt, up to a limit."""
    model, corpus = decode(wildcards.model), decode(wildcards.corpus)
    return min(LONGEST, attempt * REQUESTS.extract_minutes(model, corpus))


def evaluate_memory(wildcards, attempt):
    """Megabytes for a job that scores a model; grows with each attempt."""
    scoring = 1000 * (1 + CONFIG.scoring.threads)
    return model_memory(wildcards, attempt) + attempt * scoring


def evaluate_minutes(wildcards, attempt):
    """The time of scoring. A job that is cut off at the limit goes on in the next attempt."""
    return min(LONGEST, attempt * REQUESTS.evaluate_minutes(**names(wildcards)))


def evaluate_disk(wildcards, attempt):
    """Megabytes of local disk for vectors that wait for scoring."""
    return REQUESTS.scratch_mb(decode(wildcards.model))


def unless_joining(request, joining):
    """Request of a job that scores, or that joins the tables of parts without the model."""

    def of(wildcards, attempt):
        return joining if score_parts(wildcards) else request(wildcards, attempt)

    return of


def longest_first(rule):
    """The priority of a job that runs a model, 15 to 16: short jobs fill the gaps of long ones."""

    def of(wildcards):
        seconds = REQUESTS.seconds(rule, names(wildcards))
        return 16 - 1 / (1 + seconds)

    return of


def score_parts(wildcards):
    """The tables of the jobs that share a model's tasks, if there are several."""
    n_parts = len(REQUESTS.parts(**names(wildcards)))
    folder = f"{CONFIG.results}/scores/{wildcards.model}/{wildcards.revision}/parts"
    return (
        [f"{folder}/{part}.parquet" for part in range(n_parts)] if n_parts > 1 else []
    )


def script(name):
    """The start of a job's command: its script and the config that the run was started with.

    The config comes from the environment: another command would run all jobs of a module again.
    """
    path = os.path.relpath(ROOT / "scripts" / f"{name}.py")
    given = f'${{{SNAPSHOT.variable}:+--config "${SNAPSHOT.variable}"}}'
    command = f"python {shlex.quote(path)} {given}"
    if STORAGE.is_remote:
        command += f" --results {shlex.quote(STORAGE.local(CONFIG.results))}"
    return command.replace("{", "{{").replace("}", "}}")


def study_activations(wildcards):
    """The activations of all models of a study on its one corpus."""
    return PLAN.studies[decode(wildcards.study)].files("activations")


def explored_tables(wildcards):
    """The tables that the explorer shows."""
    of_origin = PLAN.explored.values()
    return [path for tables in of_origin for paths in tables.values() for path in paths]


def of_studies(folder, suffix):
    """The figures, captions or tables of all studies."""
    return [f"{CONFIG.results}/{folder}/{study}.{suffix}" for study in STUDIES]


def report_table(name, points):
    """A table of the report, if there are checkpoints to show in it."""
    return f"{CONFIG.results}/report/{name}.csv" if points else []


def published_files(wildcards):
    """The tables of other work that a study draws."""
    entry = CONFIG.published[decode(wildcards.published)]
    return users([path for path in (entry.scores, entry.metrics) if path])


def texts_of_corpus(wildcards):
    """The files that a corpus is selected from, if there are any."""
    source = CONFIG.corpora[decode(wildcards.corpus)].source
    if isinstance(source, GeneratedTexts):
        return f"{CONFIG.results}/generated/{wildcards.corpus}.parquet"
    if hasattr(source, "task"):
        return task_inputs(source.task)
    return users([source.file]) if getattr(source, "file", None) else []


def prompts_of_corpus(wildcards):
    """The file of prompts that a model answers, if there is one."""
    source = data_of(CONFIG.corpora[decode(wildcards.corpus)].source)
    return users([source.file]) if getattr(source, "file", None) else []


def task_data(wildcards):
    """The local data of all tasks that a model is scored on at a checkpoint."""
    tasks = PLAN.tasks[decode(wildcards.model), decode(wildcards.revision)]
    files = [file for task in tasks for file in task_inputs(task)]
    return list(dict.fromkeys(files))


@cache
def task_inputs(task):
    """All files that a task is read from: the user's own and the workflow's."""
    return [*users(PLAN.task_files(task)), *PLAN.task_results(task)]


def keep(path):
    """Activations are temporary if the config says so."""
    return path if CONFIG.extract.keep_activations else temp(path)
