# `snakemake fetch`, on a machine that reaches the hub: fills the caches of models and data sets, so
# that compute nodes need no internet. Not part of a plain run, which fetches what it meets.


localrules:
    fetch,
    fetch_model,
    fetch_corpus,
    fetch_task,


def hub_model(wildcards):
    entry = config["models"][model_of(wildcards)]
    return as_json({key: value for key, value in entry.items() if key != "revisions"})


def hub_corpus(wildcards):
    return as_json(config["corpora"][corpus_of(wildcards)]["source"])


rule fetch_model:
    output:
        f"{RESULTS}/fetched/models/{{model}}/{{revision}}.json",
    log:
        f"{RESULTS}/logs/fetch_model/{{model}}/{{revision}}.log",
    threads: 1
    resources:
        mem_mb=grows(1000),
        runtime=grows(120),
    params:
        spec=hub_model,
        revision=revision_of,
    message:
        "Fetching {wildcards.model} at {wildcards.revision}"
    shell:
        "python {SCRIPTS}/fetch_inputs.py --model {params.spec:q} --revision {params.revision:q}"
        " --output {output} --log {log}"


rule fetch_corpus:
    output:
        f"{RESULTS}/fetched/corpora/{{corpus}}.json",
    log:
        f"{RESULTS}/logs/fetch_corpus/{{corpus}}.log",
    threads: 1
    resources:
        mem_mb=grows(2000),
        runtime=grows(120),
    params:
        source=hub_corpus,
    message:
        "Fetching the texts of {wildcards.corpus}"
    shell:
        "python {SCRIPTS}/fetch_inputs.py --corpus {params.source:q} --output {output} --log {log}"


rule fetch_task:
    output:
        f"{RESULTS}/fetched/tasks/{{task}}.json",
    log:
        f"{RESULTS}/logs/fetch_task/{{task}}.log",
    threads: 1
    resources:
        mem_mb=grows(4000),
        runtime=grows(120),
    params:
        task=task_of,
    message:
        "Fetching the data of {wildcards.task}"
    shell:
        "python {SCRIPTS}/fetch_inputs.py --task {params.task:q} --output {output} --log {log}"


rule fetch:
    input:
        PLAN.fetched(),
    message:
        "Models, corpora and tasks are in the caches"
