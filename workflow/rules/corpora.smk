# Prompts, which may be images or recordings, and their views: made once for all models, on CPU. Only
# texts that a model writes itself need that model, and a GPU if it is large.


rule generate:
    input:
        prompts=lambda wildcards: PLAN.corpus_files(decode(wildcards.corpus)),
        model=writer_files,
    output:
        update("<results>/generated/{corpus}.parquet"),
    log:
        "<results>/logs/generate/{corpus}.log",
    wildcard_constraints:
        corpus=one_of(PLAN.generated),
    # All that is measured on the texts waits for it.
    priority: 20
    conda:
        ENVIRONMENT
    threads: CONFIG.extract.threads
    resources:
        mem_mb=lambda wildcards, attempt: REQUESTS.memory_mb(writer(wildcards), attempt),
        runtime=240,
        gpu=lambda wildcards: REQUESTS.gpus(writer(wildcards)),
    params:
        key=key("generate"),
    message:
        "Generating the texts of {wildcards.corpus}"
    script:
        "../../scripts/generate_texts.py"


rule corpus:
    input:
        texts=corpus_files,
        made=lambda wildcards: PLAN.made_files(CONFIG.corpora[decode(wildcards.corpus)]),
    output:
        update("<results>/corpora/{corpus}.parquet"),
    log:
        "<results>/logs/corpus/{corpus}.log",
    priority: 20
    conda:
        ENVIRONMENT
    params:
        key=key("corpus"),
    message:
        "Selecting the prompts of {wildcards.corpus}"
    script:
        "../../scripts/make_corpus.py"


rule views:
    input:
        corpus="<results>/corpora/{corpus}.parquet",
    output:
        update("<results>/corpora/{corpus}.views.parquet"),
    log:
        "<results>/logs/views/{corpus}.log",
    priority: 20
    conda:
        ENVIRONMENT
    threads: CONFIG.extract.threads
    params:
        key=key("views"),
    message:
        "Augmenting the prompts of {wildcards.corpus}"
    script:
        "../../scripts/make_views.py"
