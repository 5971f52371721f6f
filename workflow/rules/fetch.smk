# `snakemake fetch`, on a machine that reaches the hub: fills the caches of models and data sets, so
# that compute nodes need no internet. A plain run fetches what it meets.


localrules:
    fetch,


rule fetch:
    log:
        "<results>/logs/fetch.log",
    conda:
        ENVIRONMENT
    message:
        "Fetching models, corpora and tasks into the caches"
    shell:
        script("fetch") + " --threads {threads} --log {log:q}"
