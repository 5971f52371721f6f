#!/bin/sh
# Stop the cluster that start_cluster.sh started: its own daemons and their job steps, no others.
set -eu

STATE=/var/lib/layerwise-slurm
CONF=/etc/slurm/slurm.conf

[ -d "$STATE" ] || exit 0
if grep -qF "layerwise's tests/slurm/start_cluster.sh" "$CONF" 2>/dev/null && [ -e "$STATE/slurmctld.pid" ]; then
    timeout 10 scancel --state=PENDING,RUNNING,SUSPENDED --user=root 2>/dev/null || true
fi
for file in "$STATE"/*.pid; do
    [ -e "$file" ] || continue
    pid=$(cat "$file")
    # A pid file may outlive its process, and the pid may be another's by now.
    case $(cat "/proc/$pid/comm" 2>/dev/null || true) in
        slurmctld | slurmd | munged) kill -9 "$pid" 2>/dev/null || true ;;
    esac
    rm -f "$file"
done
rm -rf "$STATE/ctld" "$STATE"/n[0-9]*
# Snakemake's plugin asks for the cluster at every start, and waits ten seconds for one that is gone.
for file in "$CONF" /etc/slurm/gres.conf; do
    if grep -qF "layerwise's tests/slurm/start_cluster.sh" "$file" 2>/dev/null; then
        rm -f "$file"
    fi
done
