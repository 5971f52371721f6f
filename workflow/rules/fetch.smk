# `snakemake fetch`, on a machine that reaches the hub: fills the caches of models and data sets, so
# that compute nodes need no internet. Not part of a plain run, which fetches what it meets.


localrules:
    fetch,
    fetch_model,
    fetch_corpus,
    fetch_task,


rule fetch_model:
    input:
        inputs("fetch_model"),
    output:
        **outputs("fetch_model"),
    log:
        record("logs", "fetch_model"),
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=grows(1000),
        runtime=grows(120),
    params:
        command=command("fetch_model"),
    message:
        "Fetching {wildcards.model} at {wildcards.revision}"
    shell:
        RUN


rule fetch_corpus:
    input:
        inputs("fetch_corpus"),
    output:
        **outputs("fetch_corpus"),
    log:
        record("logs", "fetch_corpus"),
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=grows(2000),
        runtime=grows(120),
    params:
        command=command("fetch_corpus"),
    message:
        "Fetching the texts of {wildcards.corpus}"
    shell:
        RUN


rule fetch_task:
    input:
        inputs("fetch_task"),
    output:
        **outputs("fetch_task"),
    log:
        record("logs", "fetch_task"),
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=grows(4000),
        runtime=grows(120),
    params:
        command=command("fetch_task"),
    message:
        "Fetching the data of {wildcards.task}"
    shell:
        RUN


rule fetch:
    input:
        START.files_of(targets.fetched(CONFIG)),
    message:
        "Models, corpora and tasks are in the caches"
