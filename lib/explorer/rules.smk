# The explorer: any metric and score of the run in one page.

from explorer import stage
from explorer.stage import explored

EXPLORER = Path(stage.__file__).parent


rule explore:
    input:
        lambda _: [
            path
            for tables in explored(PLAN).values()
            for paths in tables.values()
            for path in paths
        ],
        stale=rerun_if_stale("explore", "<results>/explore.html"),
    output:
        "<results>/explore.html",
    log:
        "<results>/logs/explore.log",
    conda:
        ENVIRONMENT
    params:
        key=key("explore"),
    message:
        "Building the explorer"
    shell:
        script(EXPLORER / "build", "--output {output:q}")
