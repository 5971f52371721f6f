# Inputs and resources of the rules: functions of their wildcards.


def writer(wildcards):
    """The model that writes a corpus."""
    return CONFIG.corpora[decode(wildcards.corpus)].source.generate.model


def writer_files(wildcards):
    """As `model_files`, of the model that writes a corpus."""
    model = writer(wildcards)
    return files_of_model(model, CONFIG.models[model].revisions[-1])


def model_files(wildcards):
    """The files of a model that the workflow makes: converted, or by a recipe."""
    return files_of_model(decode(wildcards.model), decode(wildcards.revision))


def files_of_model(model, revision):
    """The same by the config's names."""
    converted = model_folder(CONFIG, model, revision)
    return (
        [f"{converted}/layerwise.json"]
        if converted
        else sources_of_model(model, revision)
    )


def sources_of_model(model, revision):
    """The files of a model that recipes make."""
    return PLAN.made_files(CONFIG.models[model], revision)


def replaced(path):
    """An output that stays until its job replaces it, also where the job fails."""
    return update(path)


def kept(path):
    """Activations are temporary if the config says so."""
    return replaced(path) if CONFIG.extract.keep_activations else temp(path)


def activations_due(wildcards):
    """The activations; none where the tables have all metrics and others are dropped."""
    if not PLAN.metrics_due(**names(wildcards)):
        return []
    return result("<results>/activations/{model}/{revision}/{corpus}.h5", wildcards)


def views_file(wildcards):
    """The views of a corpus, if it has any."""
    n_views = CONFIG.corpora[decode(wildcards.corpus)].views.n
    return (
        f"{CONFIG.results}/corpora/{wildcards.corpus}.views.parquet" if n_views else []
    )


def of_studies(folder, suffix):
    """The figures, captions or tables of all studies."""
    return [f"{CONFIG.results}/{folder}/{study}.{suffix}" for study in STUDIES]


def report_table(name, points):
    """A table of the report, if there are checkpoints to show in it."""
    return f"{CONFIG.results}/report/{name}.csv" if points else []
