"""The quickstart's data: a table of texts, folders of tasks, and small models trained on the spot.

The rules in ``rules.smk`` write them as files that any user could have written; ``config.yaml``
names them like any others. The library does not know this package.
"""
