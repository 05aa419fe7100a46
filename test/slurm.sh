#!/bin/bash
# A whole Slurm on this machine, for tests: munged, slurmctld and NODES slurmd with everything they write in DIR; no cgroups, no database, nothing of the system's own.
#   test/slurm.sh up DIR NODES     then: export SLURM_CONF=DIR/slurm.conf. Status 1 with a word when it does not come up
#   test/slurm.sh down DIR         stops these processes only
# Nodes are n0, n1, ...; partition low is preempted by high, 10 s after SIGTERM; a requeued job waits some 5 seconds.
set -u
what=$1 dir=$2 nodes=${3:-4}

down () {
  export SLURM_CONF=$dir/slurm.conf
  [ -s "$dir/slurmctld.pid" ] && timeout 10 scancel -f --user="$(id -un)" 2>/dev/null && sleep 1
  for f in "$dir"/slurmd.*.pid "$dir/slurmctld.pid" "$dir/munged.pid"; do [ -s "$f" ] && kill "$(cat "$f")" 2>/dev/null; done
  for f in "$dir"/slurmd.*.pid "$dir/slurmctld.pid"; do   # they remove their files as they end
    for ((t = 0; t < 30; t++)); do [ -s "$f" ] || break; sleep 0.1; done
  done
}

conf () {  # conf PORT
  host=$(hostname -s)
  cat <<C
ClusterName=onebox
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$1
SlurmUser=$(id -un)
SlurmdUser=$(id -un)
AuthType=auth/munge
AuthInfo=socket=$dir/munge.sock,cred_expire=5
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=2,sched_min_interval=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmdParameters=config_overrides
ReturnToService=2
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool.%n
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/slurmd.%n.pid
SlurmctldLogFile=$dir/log/slurmctld.log
SlurmdLogFile=$dir/log/slurmd.%n.log
KillWait=15
MinJobAge=600
MessageTimeout=30
RebootProgram=/bin/true
JobRequeue=1
NodeName=n[0-$((nodes - 1))] NodeHostname=$host NodeAddr=127.0.0.1 Port=[$(($1 + 1))-$(($1 + nodes))] CPUs=8 RealMemory=1000 State=UNKNOWN
PartitionName=low Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=REQUEUE GraceTime=10
PartitionName=high Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
C
}

up () {
  for c in munged slurmctld slurmd sbatch srun; do command -v $c >/dev/null || { echo "there is no $c (Debian: slurm-wlm and munge)"; exit 1; }; done
  getent hosts "$(hostname)" >/dev/null || { echo "the name of this host, $(hostname), leads nowhere (a line in /etc/hosts?): mpiexec could not start ranks in a job"; exit 1; }
  mkdir -p "$dir/state" "$dir/log" "$dir/munge"; chmod 755 "$dir"; chmod 700 "$dir/munge"
  dd if=/dev/urandom of="$dir/munge/key" bs=128 count=1 status=none; chmod 600 "$dir/munge/key"
  munged --force --key-file="$dir/munge/key" --socket="$dir/munge.sock" --pid-file="$dir/munged.pid" --log-file="$dir/log/munged.log" --seed-file="$dir/munge/seed" 2>/dev/null ||
    { echo "munged does not start: $(tail -n 1 "$dir/log/munged.log")"; exit 1; }
  conf $((20000 + $$ % 600 * 20)) >"$dir/slurm.conf"
  export SLURM_CONF=$dir/slurm.conf
  slurmctld -c >"$dir/log/start" 2>&1 || { echo "slurmctld does not start: $(tail -n 1 "$dir/log/start")"; down; exit 1; }
  for ((i = 0; i < nodes; i++)); do mkdir -p "$dir/spool.n$i"; slurmd -N n$i >>"$dir/log/start" 2>&1; done
  for ((t = 0; t < 300; t++)); do
    [ "$(timeout 10 sinfo -h -N -p low -t idle 2>/dev/null | wc -l)" = "$nodes" ] && return
    sleep 0.2
  done
  echo "its nodes do not come up: $(tail -n 1 "$dir/log/slurmctld.log")"; down; exit 1
}

case $what in up) up;; down) down;; *) sed -n '2,5s/^# //p' "$0"; exit 2;; esac
