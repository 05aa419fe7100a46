#!/bin/sh
# What configure makes of a CUDA that lacks a part: one clear line, and the rest is built; an error where CUDA was asked for. A made-up CUDA of empty files; what the build
# found out of everything else is taken over, nothing is created. Prints TAP.
set -u
unset CPATH C_INCLUDE_PATH LIBRARY_PATH   # these may lead to a true CUDA
here=$(cd "${builddir:-.}" && pwd) source=$(cd "$srcdir" && pwd)
tmp=$(mktemp -d) && cd "$tmp" || exit 99
trap 'rm -rf "$tmp"' EXIT
n=0
ok () { n=$((n + 1)); if [ "$1" = "$2" ]; then echo "ok $n - $3"; else echo "not ok $n - $3"; echo "# '$1' is not '$2'"; tail -n 12 said | sed 's/^/# /'; fi; }
sed -n '/^## Cache variables/,/^## Output/p' "$here/config.log" 2>/dev/null | grep '^[a-z0-9_]*_cv_' |
  grep -vE '^ac_cv_(env_|path_NVCC|header_(cuda|cublas|nccl|cudnn)|lib_(cudart|cublasLt|nccl))' >cache
[ -s cache ] || { echo '1..0 # SKIP no config.log of a build'; exit 0; }
cc=$(sed -n "s/^CC='\(.*\)'$/\1/p" "$here/config.log" | tail -n 1)

# A CUDA in the folder $1: an nvcc that builds for sm_80 and sm_90a.
fake_cuda () {
  mkdir -p "$1/bin" "$1/include" "$1/lib"
  cat >"$1/bin/nvcc" <<'S'
#!/bin/sh
case "$*" in
  *code=sm_80\ *|*code=sm_90a\ *) while [ $# -gt 0 ]; do if [ "$1" = -o ]; then : >"$2"; fi; shift; done;;
  *) echo "nvcc fatal : Unsupported gpu architecture" >&2; exit 1;;
esac
S
  chmod +x "$1/bin/nvcc"
  for h in cuda_runtime_api cublasLt nccl cudnn; do : >"$1/include/$h.h"; done
  for f in cudart:cudaMalloc cublasLt:cublasLtMatmul nccl:ncclAllReduce; do
    echo "int ${f#*:} (void) { return 0; }" | ${cc:-cc} -shared -fPIC -x c -o "$1/lib/lib${f%:*}.so" -
  done
}
# FOLDER OPTIONS...: configure with the CUDA in FOLDER (- for none); what it says of the devices, and whether the module and cuDNN would be built.
configure () {
  cuda=$1; shift
  cp cache c
  if [ "$cuda" = - ]; then echo "ac_cv_path_NVCC=" >>c; else set -- "$@" "NVCC=$tmp/$cuda/bin/nvcc"; fi
  sh "$source/configure" --no-create --cache-file="$tmp/c" "$@" >out 2>said; rc=$?
  built=$(sed -n "s/^S\\[\"HAVE_\\(CU[A-Z]*\\)_TRUE\"\\]=\"\\(.*\\)\"$/\\1\\2/p" config.status 2>/dev/null | sort | tr '\n' ' ')
  line=$(sed -n 's/^configure: devices: cpu ([^)]*), //p' out)
}
fake_cuda all
for lack in nccl.h cublasLt.h cudnn.h libnccl libcudart; do
  cp -R all "no-$lack"
  # useless ones rather than none: the system may have its own in a place that the compiler looks into
  case $lack in *.h) echo '#error' >"no-$lack/include/$lack";; *) echo 'no library' >"no-$lack/lib/$lack.so";; esac
done
lacks () { configure "no-$1"; ok "$rc $line $built" "0 no cuda: no $1 CUDA# CUDNN# " "no $1: the cpu device alone"; }

configure all
ok "$rc $line $built" "0 cuda (sm_90a, attention: own and cudnn) CUDA CUDNN " "all parts: $line"
configure all --without-cuda
ok "$rc $line $built" "0 no cuda: not asked for CUDA# CUDNN# " "--without-cuda"
configure -
ok "$rc $line $built" "0 no cuda: no nvcc CUDA# CUDNN# " "no nvcc: the cpu device alone"
lacks nccl.h
lacks cublasLt.h
lacks libcudart
lacks libnccl
configure no-cudnn.h
ok "$rc $line $built" "0 cuda (sm_90a, attention: own; no cudnn.h) CUDA CUDNN# " "no cudnn.h: $line"
configure all --without-cudnn --with-cuda-arch=sm_80
ok "$rc $line $built" "0 cuda (sm_80, attention: own) CUDA CUDNN# " "--without-cudnn, another architecture"
configure all --with-cuda-arch=sm_1
ok "$rc $line $built" "0 no cuda: nvcc does not build for sm_1, see config.log CUDA# CUDNN# " "an architecture that nvcc does not know"
configure all --with-cuda="$tmp/all" --with-cuda-arch=sm_1
ok "$([ "$rc" != 0 ] && grep -c 'error: --with-cuda was given, but: nvcc does not build for sm_1' said)" 1 "the same where CUDA was asked for: an error"
configure no-libcudart --with-cuda="$tmp/no-libcudart"
ok "$([ "$rc" != 0 ] && grep -c 'error: --with-cuda was given, but: no libcudart' said)" 1 "CUDA asked for without a library: an error"
echo "1..$n"
