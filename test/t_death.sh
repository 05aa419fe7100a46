#!/bin/sh
# A rank of 4 that is killed, in its run or in MPI_Finalize, or stands still there: the job ends in bounded time, one message names it, and the run's own word stays. How often
# that message comes before the launcher's own clean-up is counted (SOAK: of 50). Prints TAP.
set -u
here=$(cd "${builddir:-.}" && pwd)
program=$here/src/pretrain fault=$here/test/fault.so ranks=$(cd "${srcdir:-..}" && pwd)/test/ranks.sh
export OMP_NUM_THREADS=1 MPIEXEC_TIMEOUT=60 program fault
tmp=$(mktemp -d) && cd "$tmp" || exit 99
trap 'rm -rf "$tmp"' EXIT
. "$ranks"
n=0
ok () { n=$((n + 1)); if [ "$1" = "$2" ]; then echo "ok $n - $3"; else echo "not ok $n - $3"; echo "# '$1' is not '$2'"; cat "$d.err" "$d.said" "$d/exit.json" | cut -c -700 | sed 's/^/# /'; fi; }
host=$(hostname -s)
gone="rank 2, process [0-9]* on host $host, is gone"
# What ranks say goes to DIR.err, for the launcher may lose it where it is at its own clean-up.
sed 's/^exec \(.*\)/exec \1 2>>"$1.err"/' rank.sh >rank.new && mv rank.new rank.sh
pid () { cat "$d.pid.$1"; }
state () { sed 's/.*) //; s/ .*//' "/proc/$(pid "$1")/stat" 2>/dev/null; }
all_gone () { for r in 0 1 2 3; do case $(state $r) in ''|Z|X) ;; *) return 1;; esac; done; }
# Rank 2 is killed while the launcher stands still: what its neighbours do by themselves.
kill_alone () {
  proxy=$(sed 's/.*) . \([0-9]*\) .*/\1/' "/proc/$(pid 0)/stat")
  kill -STOP "$proxy"; ${1:-kill -KILL "$(pid 2)"}
  until_so all_gone
  kill -CONT "$proxy"; wait $job; rc=$?
}
# Are there processes left? They would be in the way of other tests.
left () { for r in 0 1 2 3; do if [ "$(readlink "/proc/$(pid $r)/exe")" = "$program" ]; then echo "left"; kill -KILL "$(pid $r)"; fi; done; }

# ---- in each phase
d=base FLAGS= options=; launch --train.steps 2; wait $job
for p in step load evaluation save; do
  d=alone_$p; phase $p; [ -z "$base" ] || cp -r base $d
  launch --run.watchdog 100 --train.steps 1000; until_so "$until"; kill_alone
  case $p in step|evaluation) named='[a-z]';; *) named=$p;; esac   # the others are held by rank 2 itself
  ok "$([ $rc != 0 ] && echo ended) $(code $d) $(grep -c . $d.err) $(grep -c "^pretrain: rank 2 is gone, seen during .* on rank [013] of host $host.*: $gone during $named" $d.err) $(grep -c "$gone" $d/exit.json)$(left)" \
     "ended 4 1 1 1" "SIGKILL in $p: $(cut -c -200 $d.err)"
done
named=0 good=0 many=0
if [ -n "${SOAK:-}" ]; then times=50; else times=1; fi
while [ $many = $good ] && [ $many -lt $times ]; do
  d=k$many; phase step; launch --run.watchdog 100 --train.steps 1000; until_so 'steps_of 2'
  kill -KILL "$(pid 2)"; wait $job; rc=$?
  if grep -q "$gone" $d/exit.json; then named=$((named + 1)); fi
  if [ $rc != 0 ] && [ "$(code $d)" = 4 ] && grep -q "$gone\|ended without a word" $d/exit.json && [ "$(grep -c '^pretrain: ' $d.err)" -le 1 ]; then good=$((good + 1)); fi
  many=$((many + 1))
done
ok "$good$(left)" $times "SIGKILL under the launcher's clean-up $times times: exit.json names the rank $named times, else says that there was no word"
if [ -n "${SOAK:-}" ]; then ok "$([ $named -ge 25 ] && echo often)" often "and that is most of the time: $named of $times"; fi

# ---- ended by the kernel: the ranks are in a memory cgroup with a limit (version 1 or 2), and rank 2 takes more
own_cgroup () {
  for root in /sys/fs/cgroup/memory$(sed -n 's/.*:memory:\(.*\)/\1/p' /proc/self/cgroup) /sys/fs/cgroup$(sed -n 's/^0:://p' /proc/self/cgroup); do
    cg=${root%/}/tessera.$$
    mkdir "$cg" 2>/dev/null || continue
    limit=$cg/memory.limit_in_bytes swap=$cg/memory.memsw.limit_in_bytes most=600M
    [ -e "$limit" ] || limit=$cg/memory.max swap=$cg/memory.swap.max most=0
    if { echo 600M >"$limit"; } 2>/dev/null && sh -c 'echo $$ >"$0/cgroup.procs"' "$cg" 2>/dev/null; then { echo $most >"$swap"; } 2>/dev/null; return 0; fi
    rmdir "$cg"
  done
  return 1
}
if own_cgroup; then
  trap 'rmdir "$cg"; rm -rf "$tmp"' EXIT
  { echo 'echo $$ >"$CGROUP/cgroup.procs"'; cat rank.sh; } >rank.new && mv rank.new rank.sh
  export CGROUP="$cg"
  d=oom FLAGS=; phase save; FAULTS="$FAULTS FAULT_EAT=2000"; launch --run.watchdog 100; until_so "$until"; kill_alone go
  ok "$([ $rc != 0 ] && echo ended) $(code $d) $(grep -c . $d.err) $(grep -c "^pretrain: rank 2 is gone, seen during save.* on rank [013] of host $host.*: rank 2, process [0-9]* on host $host, was ended by the kernel during save.* for want of memory: 600.00 MiB is the limit of its cgroup $cg (sbatch --mem gives more" $d.err) $(grep -c 'for want of memory' $d/exit.json)$(left)" \
     "ended 4 1 1 1" "ended by the kernel: $(cut -c -400 $d.err)"
  "$program" doctor $d >$d.out 2>$d.said </dev/null
  ok "$(grep -c '^wrong: out of memory after step 4: .*for want of memory' $d.out) $(grep -c '^   do: recompute.mode full' $d.out)" "1 1" "doctor says what makes it smaller: $(grep '^wrong' $d.out | cut -c -200)"
  sed -i 1d rank.sh
else for k in 1 2; do n=$((n + 1)); echo "ok $n - ended by the kernel # SKIP no memory cgroup can be made here"; done; fi

# ---- in MPI_Finalize: the run is done and says so; then
in_finalize () {
  d=$1 options= base= FLAGS=
  FAULTS="FAULT=MPI_Finalize:0 FAULT_RANK=2 FAULT_HOLD=$d.held"
  launch --run.watchdog "$2"; until_so held
}
in_finalize end_stop 3; kill -STOP "$(pid 2)"; at=$(date +%s); wait $job; rc=$? s=$(($(date +%s) - at))
ok "$([ $rc != 0 ] && echo ended) $([ $s -le 13 ] && echo soon) $(code $d) $(has $d)$(grep -c . $d.err) $(grep -c "^pretrain: no progress .* during MPI_Finalize on rank [013] of host $host: rank 2, process [0-9]* on host $host, stands still (SIGSTOP) during MPI_Finalize; never arrived: rank 2" $d.err)$(left)" \
   "ended soon 0 4 8 1 1" "SIGSTOP in MPI_Finalize, over after $s s: $(cut -c -200 $d.err)"
in_finalize end_kill 100; kill_alone
ok "$([ $rc != 0 ] && echo ended) $(code $d) $(has $d)$(grep -c . $d.err) $(grep -c "^pretrain: rank 2 is gone, seen during .* on rank [013] of host $host: $gone during MPI_Finalize" $d.err)$(left)" \
   "ended 0 4 8 1 1" "SIGKILL in MPI_Finalize: $(cut -c -200 $d.err)"
echo "1..$n"
