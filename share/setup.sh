# The set-up that share/check and share/demo have in common; sourced by both, which set $top to the source tree first.
# Installs what is missing on Debian, makes ./configure, configures and builds in $top/build. Asks nothing; run again, it does
# only what is still to do.

# Debian's names. The tests need the second line, the demo the third.
pkg_build='build-essential autoconf automake pkg-config mpich libmpich-dev libhdf5-mpich-dev libdnnl-dev libopenblas-dev
  libyaml-dev libjansson-dev libxxhash-dev libhwloc-dev
  libpcre2-dev libutf8proc-dev libsentencepiece-dev'
pkg_check='hdf5-tools python3-numpy python3-h5py slurm-wlm munge procps'
pkg_demo='hdf5-tools gnuplot-nox bible-kjv bible-kjv-text'

say () { printf '== %s\n' "$*"; }
die () { printf '%s: %s\n' "${0##*/}" "$*" >&2; exit 1; }

# Which of the packages $* are not installed.
pkg_missing () {
  for p in "$@"; do
    case $(dpkg-query -W -f='${db:Status-Status}' "$p" 2>/dev/null) in installed) ;; *) echo "$p";; esac
  done
}

# apt-get as root, never with a question. sudo -n fails where sudo would ask for a password.
apt () {
  set -- env DEBIAN_FRONTEND=noninteractive NEEDRESTART_MODE=a apt-get -q -o DPkg::Lock::Timeout=300 "$@"
  if [ "$(id -u)" != 0 ]; then set -- sudo -n "$@"; fi
  "$@" </dev/null
}

# Install those of the packages $* that are missing. Without Debian or without the right to install: say so and go on, since
# the same libraries may well be there under other names; configure tells what it does not find.
setup_packages () {
  if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
    say "not a Debian system; needed, by Debian's names:" "$@"
    return 0
  fi
  missing=$(pkg_missing "$@" | tr '\n' ' ')
  if [ -z "$missing" ]; then say "packages: all there"; return 0; fi
  if [ "$(id -u)" != 0 ] && ! sudo -n true 2>/dev/null; then
    say "packages missing, and neither root nor sudo without a password to install them: apt-get install $missing"
    return 0
  fi
  say "installing packages: $missing"
  log=$(mktemp)
  # Lists that are absent or stale make the first try fail.
  apt install -y --no-install-recommends $missing >"$log" 2>&1 ||
    { apt update && apt install -y --no-install-recommends $missing; } >"$log" 2>&1 ||
    { tail -n 20 "$log" >&2; rm -f "$log"; die "apt-get could not install: $missing"; }
  rm -f "$log"
  setup_fresh=yes   # what was installed may change what configure finds
}

# Every MPI rank takes some 4 MB of /dev/shm; containers often have 64 MB in all.
setup_shm () {
  room=$(df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 {print $4}')
  if [ "${room:-0}" -ge 400000 ] || [ -n "${UCX_POSIX_DIR:-}" ]; then return 0; fi
  UCX_POSIX_DIR=$(mktemp -d); export UCX_POSIX_DIR
  trap 'rm -rf "$UCX_POSIX_DIR"' EXIT
  say "/dev/shm is small: MPI's shared memory goes to $UCX_POSIX_DIR"
}

setup_build () {
  cd "$top" || exit 1
  if [ ! -f configure ] || [ -n "$(find configure.ac Makefile.am ./*/Makefile.am share/m4 -newer configure)" ]; then
    say "making configure"
    mkdir -p share/aux
    autoreconf -fi >autoreconf.log 2>&1 || { cat autoreconf.log >&2; die 'autoreconf failed'; }
    rm -f autoreconf.log
  fi
  # A build folder that came along with a copied tree still points to the old place.
  if [ -f build/Makefile ]; then
    from=$(sed -n 's/^abs_top_srcdir = //p' build/Makefile)
    [ "$(cd "$from" 2>/dev/null && pwd -P)" = "$top" ] || rm -rf build
  fi
  mkdir -p build && cd build || exit 1
  if [ ! -f Makefile ] || [ -n "${setup_fresh:-}$(find ../configure -newer config.status)" ]; then
    say "configuring in build/"
    ../configure -q || die 'configure failed: the line above says what is missing'
  fi
  say "building with $(nproc) jobs"
  make -s -j"$(nproc)" || die 'the build failed'
}
