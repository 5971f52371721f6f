# Inputs of the rules: functions of their wildcards.


def writer(wildcards):
    """The model that writes a corpus."""
    return CONFIG.corpora[decode(wildcards.corpus)].source.generate.model


def writer_files(wildcards):
    """Files that must exist before the model that writes a corpus can be loaded."""
    model = writer(wildcards)
    return files_of_model(model, CONFIG.models[model].revisions[-1])


def model_files(wildcards):
    """Files that must exist before a model can be loaded."""
    return files_of_model(decode(wildcards.model), decode(wildcards.revision))


def files_of_model(model, revision):
    """The marker of a converted model, or the files that recipes make."""
    converted = model_folder(CONFIG, model, revision)
    return (
        [f"{converted}/layerwise.json"] if converted else model_sources(model, revision)
    )


def model_sources(model, revision):
    """The files of a model that recipes make."""
    return PLAN.made_files(CONFIG.models[model], revision)


def corpus_files(wildcards):
    """The files that a corpus is selected from, if there are any."""
    corpus = decode(wildcards.corpus)
    results = PLAN.corpus_results(corpus)
    # Of generated texts, the prompts are the input of the model that writes them.
    return (
        results if corpus in PLAN.generated else [*PLAN.corpus_files(corpus), *results]
    )


def views_file(wildcards):
    """The views of a corpus, if it has any."""
    has_views = CONFIG.corpora[decode(wildcards.corpus)].views.n > 0
    return (
        f"{CONFIG.results}/corpora/{wildcards.corpus}.views.parquet"
        if has_views
        else []
    )


def task_files(wildcards):
    """The local data of all tasks that a model is scored on at a checkpoint."""
    tasks = PLAN.tasks[decode(wildcards.model), decode(wildcards.revision)]
    files = [PLAN.task_files(task) + PLAN.task_results(task) for task in tasks]
    return list(dict.fromkeys(path for paths in files for path in paths))


def report_table(name, points):
    """A table of the report, if there are checkpoints to show in it."""
    return f"{CONFIG.results}/report/{name}.csv" if points else []
