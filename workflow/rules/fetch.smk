# `snakemake fetch`, on a machine that reaches the hub: fills the caches of models and data sets, so
# that compute nodes need no internet. Not part of a plain run, which fetches what it meets.


localrules:
    fetch,
    fetch_model,
    fetch_corpus,
    fetch_task,


rule fetch_model:
    output:
        f"{RESULTS}/fetched/models/{{model}}/{{revision}}.json",
    log:
        f"{RESULTS}/logs/fetch_model/{{model}}/{{revision}}.log",
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=grows(1000),
        runtime=grows(120),
    params:
        script=f"{SCRIPTS}/fetch_inputs.py",
        spec=hub_model,
        revision=revision_of,
    message:
        "Fetching {wildcards.model} at {wildcards.revision}"
    shell:
        "python {params.script} --model {params.spec:q} --revision {params.revision:q}"
        " --output {output} --log {log}"


rule fetch_corpus:
    output:
        f"{RESULTS}/fetched/corpora/{{corpus}}.json",
    log:
        f"{RESULTS}/logs/fetch_corpus/{{corpus}}.log",
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=grows(2000),
        runtime=grows(120),
    params:
        script=f"{SCRIPTS}/fetch_inputs.py",
        source=hub_corpus,
    message:
        "Fetching the texts of {wildcards.corpus}"
    shell:
        "python {params.script} --corpus {params.source:q} --output {output} --log {log}"


rule fetch_task:
    output:
        f"{RESULTS}/fetched/tasks/{{task}}.json",
    log:
        f"{RESULTS}/logs/fetch_task/{{task}}.log",
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=grows(4000),
        runtime=grows(120),
    params:
        script=f"{SCRIPTS}/fetch_inputs.py",
        task=task_of,
    message:
        "Fetching the data of {wildcards.task}"
    shell:
        "python {params.script} --task {params.task:q} --output {output} --log {log}"


rule fetch:
    input:
        PLAN.fetched(),
    message:
        "Models, corpora and tasks are in the caches"
