"""The metrics, one file each (or a few that share their work); every file here is found."""
