# `snakemake fetch`, on a machine that reaches the hub: fills the caches of models and data sets, so
# that compute nodes need no internet. A plain run fetches what it meets. Records always run again,
# since a branch of the hub may have moved; files in the caches are not downloaded twice.


localrules:
    fetch,
    fetch_model,
    fetch_corpus,
    fetch_task,


rule fetch:
    input:
        lambda _: PLAN.fetched,
    log:
        "<results>/logs/fetch.log",
    conda:
        ENVIRONMENT
    message:
        "Listing what was not fetched"
    shell:
        script("fetch", "", keyed=False)


rule fetch_model:
    input:
        stale=always("<results>/fetched/models/{model}/{revision}.json"),
    output:
        "<results>/fetched/models/{model}/{revision}.json",
    log:
        "<results>/logs/fetch/models/{model}/{revision}.log",
    conda:
        ENVIRONMENT
    message:
        "Fetching {wildcards.model} at {wildcards.revision}"
    shell:
        script(
            "fetch",
            "--model {wildcards.model:q} --revision {wildcards.revision:q} "
            "--output {output:q}",
            keyed=False,
        )


rule fetch_corpus:
    input:
        stale=always("<results>/fetched/corpora/{corpus}.json"),
    output:
        "<results>/fetched/corpora/{corpus}.json",
    log:
        "<results>/logs/fetch/corpora/{corpus}.log",
    conda:
        ENVIRONMENT
    message:
        "Fetching the data set of {wildcards.corpus}"
    shell:
        script(
            "fetch",
            "--corpus {wildcards.corpus:q} --output {output:q}",
            keyed=False,
        )


rule fetch_task:
    input:
        stale=always("<results>/fetched/tasks/{task}.json"),
    output:
        "<results>/fetched/tasks/{task}.json",
    log:
        "<results>/logs/fetch/tasks/{task}.log",
    conda:
        ENVIRONMENT
    message:
        "Fetching the data set of {wildcards.task}"
    shell:
        script("fetch", "--task {wildcards.task:q} --output {output:q}", keyed=False)
