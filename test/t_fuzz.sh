#!/bin/sh
# The readers of others' files, fuzzed for FUZZ_SECONDS each (a minute in all) from the kept corpus, with address and undefined-behaviour checks: libFuzzer where clang has it, else the driver
# in fuzz.c. A fault leaves its input in build/fuzz.TARGET.crash; put that into test/corpus/TARGET when it is mended. Prints TAP.
case $builddir in /*) ;; *) builddir=$PWD/$builddir ;; esac
case $srcdir in /*) ;; *) srcdir=$PWD/$srcdir ;; esac
seconds=${FUZZ_SECONDS:-10}
dir=$(mktemp -d) || exit 99
trap 'rm -rf "$dir"' EXIT
cd "$dir" || exit 99
var () { sed -n "s/^$1 = //p" "$builddir/Makefile"; }
grep -q 'define HAVE_PCRE2 1' "$builddir/config.h" || { echo '1..0 # SKIP built without PCRE2'; exit 0; }
libs="-lpcre2-8 -ljansson -lxxhash -lm"
if grep -q 'define HAVE_UTF8PROC 1' "$builddir/config.h"; then libs="-lutf8proc $libs"; fi
sources="test/fuzz.c src/base.c src/model.c io/wire.c io/safetensors.c io/hf_config.c io/tokenizer.c io/bpe.c io/bpe_json.c io/bpe_split.c io/tokens.c io/tokens_hdf5.c io/hdf.c io/hdf_apart.c"
flags="-std=gnu11 -g -O1 -fno-omit-frame-pointer -fno-sanitize-recover=undefined -iquote $builddir -iquote $srcdir/src -iquote $srcdir/io -I $builddir $(var HDF5_CPPFLAGS)"
build () {  # build NAME WORDS...: compiles all sources with them
  name=$1; shift
  rm -f *.o
  for f in $sources; do echo "$f"; done | xargs -P 2 -I @ sh -c "$* $flags -c $srcdir/@ -o \$(basename @ .c).o" >said 2>&1 && $* ./*.o $libs $(var HDF5_LIBS) -o "$name" >>said 2>&1
}
cc=$(var CC) clang=${CLANG:-clang}
mpi=$(echo '#include <mpi.h>' | $cc -E - 2>/dev/null | sed -n 's/^# [0-9]* "\(.*\)\/mpi\.h".*/\1/p' | head -n 1)
flags="$flags -I ${mpi:-.}"
if build fuzz "$clang" -fsanitize=fuzzer,address,undefined; then how=libFuzzer
elif build fuzz "${cc:-cc}" -DFUZZ_MAIN -fsanitize=address,undefined; then how="its own driver"
else echo "1..0 # SKIP no compiler with -fsanitize=address: $(tail -n 1 said)"; exit 0; fi
# HDF5 1.10 overruns its own memory for a file with one byte changed, in a process of its own: checks there only say so, and make each process thirty times slower.
build plain "${cc:-cc}" -DFUZZ_MAIN || { echo "1..0 # SKIP $(tail -n 1 said)"; exit 0; }
ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1; export ASAN_OPTIONS
# fuzz TARGET: leaves what it said and its status
fuzz () {
  FUZZ_TARGET=$1; export FUZZ_TARGET
  mkdir -p "new.$1"
  if [ "$1" = hdf5 ]; then ./plain "$seconds" "$srcdir/test/corpus/$1" >"said.$1" 2>&1
  elif [ "$how" = libFuzzer ]; then ./fuzz -seed=1 -max_total_time="$seconds" -timeout=30 -rss_limit_mb=4096 -artifact_prefix="$builddir/fuzz.$1." "new.$1" "$srcdir/test/corpus/$1" >"said.$1" 2>&1
  else ./fuzz "$seconds" "$srcdir/test/corpus/$1" >"said.$1" 2>&1; fi
  echo $? >"rc.$1"
}
n=0
tell () {
  rc=$(cat "rc.$1")
  n=$((n + 1)); [ "$rc" -eq 0 ] || printf 'not '
  by=$how; [ "$1" = hdf5 ] && by="its own driver"
  echo "ok $n - $1 by $by, $(ls "$srcdir/test/corpus/$1" | wc -l) files of the corpus: $(grep -E '^Done|changes of them' "said.$1")"
  [ "$rc" -eq 0 ] || grep -vE '^#[0-9]+.*(NEW|REDUCE|pulse)|^INFO' "said.$1" | tail -n 40 | sed 's/^/# /'
}
for pair in "safetensors index" "config tokenizer" "megatron hdf5"; do
  fuzz "${pair% *}" & fuzz "${pair#* }"
  wait
  tell "${pair% *}"; tell "${pair#* }"
done
echo "1..$n"
