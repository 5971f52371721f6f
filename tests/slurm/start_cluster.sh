#!/bin/sh
# A SLURM cluster of several nodes, each with a declared GPU, on this one machine. For tests.
#
#   tests/slurm/start_cluster.sh [NODES]     2 by default
#   tests/slurm/stop_cluster.sh
#
# Needs root on Debian or Ubuntu (a container will do). Installs slurm-wlm and munge if they are
# absent. Refuses to touch a SLURM configuration that it has not written itself.
set -eu

NODES=${1:-2}
CONF=/etc/slurm/slurm.conf
MARK="# written by layerwise's tests/slurm/start_cluster.sh"
STATE=/var/lib/layerwise-slurm

if [ "$(id -u)" -ne 0 ]; then
    echo "start_cluster.sh: must run as root, since it installs and starts SLURM's daemons" >&2
    exit 1
fi
if [ -e "$CONF" ] && ! grep -qF "$MARK" "$CONF"; then
    echo "start_cluster.sh: $CONF belongs to another cluster; it is left alone" >&2
    exit 1
fi
if ! command -v slurmctld >/dev/null || ! command -v slurmd >/dev/null || ! command -v munged >/dev/null; then
    apt-get update -q
    DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends slurm-wlm munge
fi

"$(dirname "$0")/stop_cluster.sh"
mkdir -p /etc/slurm "$STATE/ctld" "$STATE/log" /run/munge
chown munge: /run/munge

# cons_tres hands out CPUs, memory and GPUs one by one; without cgroups (a container has none)
# the memory limit is kept by the accounting of processes, every two seconds.
cat >"$CONF" <<END
$MARK
ClusterName=layerwise
SlurmctldHost=$(hostname)(127.0.0.1)
SlurmctldPort=17000
AuthType=auth/munge
SlurmUser=root
SlurmdUser=root
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=2
JobAcctGatherParams=OverMemoryKill
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerParameters=bf_interval=2,sched_min_interval=100000
GresTypes=gpu
SlurmdParameters=config_overrides
ReturnToService=2
SlurmdTimeout=10
InactiveLimit=0
KillWait=2
MinJobAge=3600
OverTimeLimit=0
StateSaveLocation=$STATE/ctld
SlurmdSpoolDir=$STATE/%n
SlurmctldPidFile=$STATE/slurmctld.pid
SlurmdPidFile=$STATE/%n.pid
SlurmctldLogFile=$STATE/log/slurmctld.log
SlurmdLogFile=$STATE/log/%n.log
NodeName=n[1-$NODES] NodeHostname=localhost NodeAddr=127.0.0.1 Port=[17001-$((17000 + NODES))] CPUs=2 RealMemory=20000 Gres=gpu:1
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP DefMemPerCPU=1000
END
cat >/etc/slurm/gres.conf <<END
$MARK
NodeName=n[1-$NODES] Name=gpu File=/dev/null
END

if ! munge -n >/dev/null 2>&1; then
    runuser -u munge -- munged --force
    cp /run/munge/munged.pid "$STATE/munged.pid" # stop_cluster.sh stops this one alone
fi
slurmctld -c
node=1
while [ "$node" -le "$NODES" ]; do
    mkdir -p "$STATE/n$node"
    slurmd -N "n$node"
    node=$((node + 1))
done

waited=0
until [ "$(sinfo --noheader --states=idle --format=%D 2>/dev/null | tr -d ' ')" = "$NODES" ]; do
    waited=$((waited + 1))
    if [ "$waited" -gt 60 ]; then
        sinfo --Node --long >&2 || true
        tail -n 20 "$STATE"/log/*.log >&2
        echo "start_cluster.sh: the nodes did not come up in 60 s" >&2
        exit 1
    fi
    sleep 1
done
sinfo --Node --format="%N %T cpus=%c memory=%m %G"
