#!/bin/sh
# Who may include whom (the layers of the source). Prints TAP.
cd "$srcdir" || exit 99
n=0
may_not () {  # may_not GLOB PATTERN
  n=$((n + 1))
  if hits=$(grep -nE "#include [<\"]$2" $1 2>/dev/null); then
    echo "not ok $n - $1 does not include $2"; echo "$hits" | sed 's/^/# /'
  else echo "ok $n - $1 does not include $2"; fi
}
may_not 'src/*.[ch]' '(\.\./)?gpu/'
may_not 'src/*.[ch]' 'cuda'
may_not 'src/*.[ch]' 'nccl'
may_not 'src/*.[ch]' 'hdf5'
may_not 'gpu/*' 'hdf5'
may_not 'gpu/*.cu' 'mpi'
may_not 'src/model.[ch] src/sched.[ch] src/conf.[ch]' 'mpi'
may_not 'src/layer.[ch] src/shard.[ch] src/step.[ch] src/opt.[ch] src/sched.[ch] src/model.[ch]' '(dnnl|cblas|mpi)\.h'
echo "1..$n"
