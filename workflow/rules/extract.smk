# Every layer of a model at a checkpoint on a corpus and its views, in one pass. Needs a GPU for all
# but small models.


rule extract:
    input:
        corpus="<results>/corpora/{corpus}.parquet",
        views=views_file,
        model=model_files,
        stale=rerun_if_stale(
            "extract", "<results>/activations/{model}/{revision}/{corpus}.h5"
        ),
    output:
        kept("<results>/activations/{model}/{revision}/{corpus}.h5"),
    log:
        "<results>/logs/extract/{model}/{revision}/{corpus}.log",
    benchmark:
        "<results>/benchmarks/extract/{model}/{revision}/{corpus}.tsv"
    priority: request("extract_priority", "model", "corpus")
    conda:
        ENVIRONMENT
    threads: CONFIG.extract.threads
    resources:
        mem_mb=request("memory_mb", "model", "attempt"),
        runtime=request("extract_minutes", "model", "corpus", "attempt"),
        disk_mb=request("extract_mb", "model", "corpus"),
        gpu=request("gpus", "model"),
    params:
        key=key("extract"),
    message:
        "Extracting {wildcards.model} at {wildcards.revision} on {wildcards.corpus}"
    shell:
        script(
            "extract_activations",
            "--model {wildcards.model:q} --revision {wildcards.revision:q} "
            "--corpus {wildcards.corpus:q} --prompts {input.corpus:q} "
            "--views {input.views:q} --output {output:q}",
        )
