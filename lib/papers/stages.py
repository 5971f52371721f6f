"""Stages of the workflow: tables that others published, and the similarity of layers."""

from pathlib import Path

from layerwise.addons import stage

stage("papers", rules=Path(__file__).with_name("rules.smk"))
