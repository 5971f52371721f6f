"""Registers images and recordings as media, in this order."""

from layerwise.addons import MEDIA
from media.audio import Recording
from media.images import Picture

MEDIA += [Picture, Recording]
