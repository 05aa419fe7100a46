#!/bin/sh
# What README, manual page and scripts say is so: the README's own run, step by step and as written, but smaller; its files and
# exit codes; the manual page's options; the scripts' syntax.
srcdir=${srcdir:-.} builddir=${builddir:-.} n=0
pretrain=$PWD/$builddir/src/pretrain readme=$(realpath "$srcdir/README") top=$(realpath "$srcdir")
mpi=${MPIEXEC:-mpiexec}
MPIEXEC_TIMEOUT=${MPIEXEC_TIMEOUT:-300}; export MPIEXEC_TIMEOUT
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
ok () { n=$((n + 1)); if [ "$1" = 0 ]; then echo "ok $n - $2"; else echo "not ok $n - $2"; sed 's/^/# /' "$dir/out" | tail -n 20; fi; }
try () { what=$1; shift; "$@" >"$dir/out" 2>&1; ok $? "$what"; }

try 'the manual page is there' test -s "$builddir/share/pretrain.1"
"$pretrain" --help | sed -n 's/^  --\([a-z0-9_.]*\) [^ ].*/\1/p' | sort >"$dir/help"
sed -n 's/^\.B \\-\\-\([a-z0-9_.]*\) .*/\1/p' "$builddir/share/pretrain.1" | sort >"$dir/man"
try 'it has the options that --help has' cmp "$dir/help" "$dir/man"
try 'and they are many' test "$(wc -l <"$dir/man")" -gt 60

for f in share/check share/demo share/setup.sh; do try "$f is a POSIX shell's" sh -n "$top/$f"; done
for f in "$top"/share/slurm/*.sbatch; do try "${f#"$top"/} is bash's" bash -n "$f"; done
for f in $(grep -o '\(share\|src\|io\|test\)/[a-z_]*[/.][a-z_.]*[a-z]' "$readme" | sort -u); do
  try "README: $f exists" test -e "$top/$f"
done
grep -o 'EXIT_[A-Z]* = [0-9]' "$top/src/base.h" | sed 's/.*= //' | sort >"$dir/codes"
sed -n '/^Exit status/,/^Building/s/^  \([0-9]\)   .*/\1/p' "$readme" | sort >"$dir/told"
try 'README: the exit codes of the program' cmp "$dir/codes" "$dir/told"

cd "$dir" || exit 1
sed -n '/^  model: demo /,/^  eval:/s/^  //p' "$readme" >run.yaml
cat "$readme" "$readme" >book.txt
small='--train.seq_len 64 --model tiny'
try 'README: tokenize' "$pretrain" tokenize --tokenizer bytes book.txt book.h5
try 'README: train on 8 ranks' "$mpi" -n 8 "$pretrain" run.yaml $small --train.steps 2
try 'README: go further' "$mpi" -n 8 "$pretrain" run.yaml $small --train.steps 3
grep -q 'resumed at step 2' out; ok $? 'and it resumes'
try 'README: on another mesh' "$mpi" -n 4 "$pretrain" run.yaml $small --mesh.dp_shard 4 --mesh.pp 1 --mesh.tp 1 --train.steps 4
grep -q 'resumed at step 3' out; ok $? 'and it resumes'
try 'README: sample' "$mpi" -n 8 "$pretrain" sample runs/book --prompt 'It was a' --tokens 2
grep -q '^It was a' out; ok $? 'and the text begins with the prompt'
try 'README: verify' "$pretrain" verify runs/book/checkpoints/*.h5
try 'README: report' "$pretrain" report runs/book
[ "$(tail -n 1 runs/book/metrics.jsonl | cut -c 1-9)" = '{"step":4' ]; ok $? 'README: the last record is of the last step'
for f in config.yaml exit.json; do try "README: $f" test -s "runs/book/$f"; done

# share/doc: commands run, and print what the page says they print (blanks do not count). Those of the guide's Slurm need one: test/slurm.sh brings it, or they are skipped.
ln -s "$top/share" "$top/test" .
said=yes slurm= told=0
check_said () { [ -z "$command" ] || ok "$([ "$said" = yes ]; echo $?)" "$page: $(echo "$command" | cut -c 1-110)"; }
skip () { n=$((n + 1)); echo "ok $n - $page: $(echo "$1" | cut -c 1-110) # SKIP no Slurm: $(tail -n 1 out)"; }
unset PRETRAIN LAUNCH
PATH=$(dirname "$pretrain"):$PATH
TESSERA_SHARE=$top/share; export TESSERA_SHARE PATH
squeeze () { tr -s ' ' ' ' | sed 's/^ //'; }
records () { grep -c . runs/job/metrics.jsonl 2>/dev/null || :; }
soon () { t=0; until eval "$1"; do t=$((t + 1)); [ $t -lt 480 ] || return; sleep 0.25; done; }
# What somebody who reads the page would wait for before the next command: a job that trains, a job that is over.
settle () {
  case $1 in
  sbatch*) soon '[ "$(records)" -gt $((told + 1)) ]' ;;
  scancel*|kill*) soon '[ -z "$(squeue -h)" ]'; told=$(records) ;;
  esac
}
trap 'bash "$top/test/slurm.sh" down "$dir/slurm"; rm -rf "$dir"' EXIT
for page in guide article; do
  sed -n 's/^ *\([$>]\) /\1/p' "$top/share/doc/$page.txt" | sed "s|/tmp/slurm|$dir/slurm|g" >lines
  command=
  while IFS= read -r line; do
    case $slurm$line in
    no'$'*slurm.sh\ down*) check_said; command= slurm=; skip "${line#?}" ;;
    no'$'*) skip "${line#?}" ;;
    no*) ;;
    '$'*)
      check_said
      command=${line#?} said=yes
      eval "$command" >out 2>&1 </dev/null; rc=$?
      case $rc$page$command in *slurm.sh\ up*) [ $rc = 0 ] || { slurm=no; skip "$command"; command=; continue; } ;; esac
      case $rc$page$command in 0[ag]*|2article*|2guide*"pretrain doctor runs"*) ;; *) said=no ;; esac
      squeeze <out >squeezed
      settle "$command" ;;
    '>'*) grep -qF -- "$(echo "${line#?}" | squeeze)" squeezed || { said=no; echo "# not printed: ${line#?}"; } ;;
    esac
  done <lines
  check_said
done
echo "1..$n"
