# Models that the workflow converts to safetensors. The folder stays until its job replaces it.

CONVERTED = "<results>/converted/{model}/{revision}"


rule convert:
    input:
        model=lambda wildcards: model_sources(**names(wildcards)),
    output:
        update(f"{CONVERTED}/layerwise.json"),
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
    script:
        "../../scripts/convert_model.py"
