# Prompts, which may be images or recordings, and their views: made once for all models, on CPU. Only
# texts that a model writes itself need that model, and a GPU if it is large.


rule generate:
    input:
        prompts=lambda wildcards: PLAN.corpus_files(decode(wildcards.corpus)),
        model=writer_files,
        stale=rerun_if_stale("generate", "<results>/generated/{corpus}.parquet"),
    output:
        replaced("<results>/generated/{corpus}.parquet"),
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
        runtime=LONGEST,
        gpu=lambda wildcards: REQUESTS.gpus(writer(wildcards)),
    params:
        key=key("generate"),
    message:
        "Generating the texts of {wildcards.corpus}"
    shell:
        script("generate_texts", "--corpus {wildcards.corpus:q} --output {output:q}")


rule corpus:
    input:
        texts=corpus_files,
        made=lambda wildcards: PLAN.made_files(CONFIG.corpora[decode(wildcards.corpus)]),
        stale=rerun_if_stale("corpus", "<results>/corpora/{corpus}.parquet"),
    output:
        replaced("<results>/corpora/{corpus}.parquet"),
    log:
        "<results>/logs/corpus/{corpus}.log",
    priority: 20
    conda:
        ENVIRONMENT
    params:
        key=key("corpus"),
    message:
        "Selecting the prompts of {wildcards.corpus}"
    shell:
        script(
            "make_corpus",
            "--corpus {wildcards.corpus:q} --texts {input.texts:q} --output {output:q}",
        )


rule views:
    input:
        corpus="<results>/corpora/{corpus}.parquet",
        stale=rerun_if_stale("views", "<results>/corpora/{corpus}.views.parquet"),
    output:
        replaced("<results>/corpora/{corpus}.views.parquet"),
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
    shell:
        script(
            "make_views",
            "--corpus {wildcards.corpus:q} --prompts {input.corpus:q} --output {output:q}",
        )
