# Texts and images: prompts with ids, and their views. Made once for all models, on CPU.


rule unpack_wikipedia:
    input:
        inputs("unpack_wikipedia"),
    output:
        **outputs("unpack_wikipedia"),
    log:
        record("logs", "unpack_wikipedia"),
    benchmark:
        record("benchmarks", "unpack_wikipedia")
    # Short, and the longest jobs wait for it.
    priority: 20
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=grows(2000),
        runtime=grows(10),
    params:
        command=command("unpack_wikipedia"),
    message:
        "Cleaning the Wikipedia slice of its markup"
    shell:
        RUN


rule make_corpus:
    input:
        inputs("make_corpus"),
    output:
        **outputs("make_corpus"),
    log:
        record("logs", "make_corpus"),
    benchmark:
        record("benchmarks", "make_corpus")
    # Short, and the longest jobs wait for it.
    priority: 20
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=grows(2000),
        runtime=grows(20),
    params:
        command=command("make_corpus"),
    message:
        "Choosing the prompts of {wildcards.corpus}"
    shell:
        RUN


rule make_views:
    input:
        inputs("make_views"),
    output:
        **outputs("make_views"),
    log:
        record("logs", "make_views"),
    benchmark:
        record("benchmarks", "make_views")
    # Short, and the longest jobs wait for it.
    priority: 20
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=grows(4000),
        runtime=grows(60),
    params:
        command=command("make_views"),
    message:
        "Augmenting the prompts of {wildcards.corpus}"
    shell:
        RUN


rule make_images:
    input:
        inputs("make_images"),
    output:
        **outputs("make_images"),
    log:
        record("logs", "make_images"),
    benchmark:
        record("benchmarks", "make_images")
    # Short, and the longest jobs wait for it.
    priority: 20
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=grows(8000),
        runtime=grows(120),
    params:
        command=command("make_images"),
    message:
        "Choosing the images of {wildcards.corpus}"
    shell:
        RUN


rule draw_image_views:
    input:
        inputs("draw_image_views"),
    output:
        **outputs("draw_image_views"),
    log:
        record("logs", "draw_image_views"),
    benchmark:
        record("benchmarks", "draw_image_views")
    # Short, and the longest jobs wait for it.
    priority: 20
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=grows(4000),
        runtime=grows(60),
    params:
        command=command("draw_image_views"),
    message:
        "Drawing views of the images of {wildcards.corpus}"
    shell:
        RUN
