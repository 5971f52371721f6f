# Models that the workflow converts to safetensors.


rule convert:
    input:
        model=lambda wildcards: sources_of_model(**names(wildcards)),
        stale=rerun_if_stale(
            "converted",
            "<results>/converted/{model}/{revision}",
            within="layerwise.json",
        ),
    output:
        directory("<results>/converted/{model}/{revision}"),
    log:
        "<results>/logs/convert/{model}/{revision}.log",
    # The longest jobs wait for it.
    priority: 20
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=request("memory_mb", "model", "attempt"),
    params:
        key=key("converted"),
    message:
        "Converting {wildcards.model} to safetensors"
    shell:
        script(
            "convert_model",
            "--model {wildcards.model:q} --revision {wildcards.revision:q} "
            "--output {output:q}",
        )
