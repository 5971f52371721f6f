# Every layer of a model at a checkpoint on a corpus and its views, in one pass. Needs a GPU for all
# but small models.


rule extract:
    input:
        corpus="<results>/corpora/{corpus}.parquet",
        views=views_file,
        model=model_files,
    output:
        (update if CONFIG.extract.keep_activations else temp)(
            "<results>/activations/{model}/{revision}/{corpus}.h5"
        ),
    log:
        "<results>/logs/extract/{model}/{revision}/{corpus}.log",
    benchmark:
        "<results>/benchmarks/extract/{model}/{revision}/{corpus}.tsv"
    priority: request("priority", "model")
    conda:
        ENVIRONMENT
    threads: CONFIG.extract.threads
    resources:
        mem_mb=request("memory_mb", "model", "attempt"),
        gpu=request("gpus", "model"),
    params:
        key=key("extract"),
    message:
        "Extracting {wildcards.model} at {wildcards.revision} on {wildcards.corpus}"
    script:
        "../../scripts/extract_activations.py"
