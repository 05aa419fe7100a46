# TS_CUDA: look for nvcc, the CUDA runtime, cuBLASLt, NCCL and (optional) cuDNN.
# --with-cuda=DIR|yes|no|auto (default auto: a missing CUDA is no error)
AC_DEFUN([TS_CUDA], [
  AC_ARG_VAR([NVCC], [CUDA compiler])
  AC_ARG_VAR([NVCCFLAGS], [CUDA compiler flags])
  AC_ARG_WITH([cuda], [AS_HELP_STRING([--with-cuda@<:@=DIR@:>@], [build the GPU device (default: if found)])], [], [with_cuda=auto])
  AC_ARG_WITH([cuda-arch], [AS_HELP_STRING([--with-cuda-arch=ARCH], [real architecture for nvcc (default: sm_90a)])], [], [with_cuda_arch=sm_90a])
  AC_ARG_WITH([cudnn], [AS_HELP_STRING([--without-cudnn], [use our own attention kernels only])], [], [with_cudnn=auto])
  ts_have_cuda=no ts_have_cudnn=no ts_cuda_why="not asked for"
  AS_VAR_IF([with_cuda], [no], [], [
    AS_CASE([$with_cuda], [yes|auto], [ts_cuda_path="$PATH:${CUDA_HOME-/usr/local/cuda}/bin:/usr/local/cuda/bin"], [ts_cuda_path=$with_cuda/bin])
    AC_PATH_PROG([NVCC], [nvcc], [], [$ts_cuda_path])
    AS_IF([test -z "$NVCC"], [ts_cuda_why="no nvcc"], [
      ts_cuda_home=`AS_DIRNAME(["$NVCC"])`; ts_cuda_home=`AS_DIRNAME(["$ts_cuda_home"])`
      CUDA_CPPFLAGS="-I$ts_cuda_home/include"
      AS_IF([test -d "$ts_cuda_home/lib64"], [ts_lib=lib64], [ts_lib=lib])
      CUDA_LDFLAGS="-L$ts_cuda_home/$ts_lib"
      ts_save_CPPFLAGS=$CPPFLAGS ts_save_LDFLAGS=$LDFLAGS ts_save_LIBS=$LIBS
      CPPFLAGS="$CPPFLAGS $CUDA_CPPFLAGS" LDFLAGS="$LDFLAGS $CUDA_LDFLAGS"
      ts_have_cuda=yes
      AC_CHECK_HEADERS([cuda_runtime_api.h cublasLt.h nccl.h], [], [ts_have_cuda=no; ts_cuda_why="no $ac_header"; break])
      AS_VAR_IF([ts_have_cuda], [yes], [
        LIBS=
        AC_CHECK_LIB([cudart], [cudaMalloc], [], [ts_have_cuda=no; ts_cuda_why="no libcudart"])
        AC_CHECK_LIB([cublasLt], [cublasLtMatmul], [], [ts_have_cuda=no; ts_cuda_why="no libcublasLt"])
        AC_CHECK_LIB([nccl], [ncclAllReduce], [], [ts_have_cuda=no; ts_cuda_why="no libnccl"])
        AS_IF([test "$with_cudnn" != no && test $ts_have_cuda = yes], [
          dnl opened when it is first needed, not linked
          AC_CHECK_HEADER([cudnn.h], [ts_have_cudnn=yes])
          AS_IF([test $ts_have_cudnn = no && test "$with_cudnn" = yes], [AC_MSG_ERROR([--with-cudnn was given, but there is no cuDNN])])])
        CUDA_LIBS="$LIBS -lstdc++"])
      ts_virtual=`echo $with_cuda_arch | sed 's/^sm_/compute_/'`
      ts_gencode="-gencode=arch=$ts_virtual,code=$with_cuda_arch"
      AS_VAR_IF([ts_have_cuda], [yes], [
        dnl the compiler may be too old or too new for the architecture, or not fit the host's
        AC_MSG_CHECKING([whether $NVCC builds for $with_cuda_arch])
        echo '__global__ void kernel () {}' >conftest.cu
        AS_IF([$NVCC $ts_gencode -c -o conftest.cu.o conftest.cu >&AS_MESSAGE_LOG_FD 2>&1], [AC_MSG_RESULT([yes])],
          [AC_MSG_RESULT([no]); ts_have_cuda=no ts_have_cudnn=no ts_cuda_why="nvcc does not build for $with_cuda_arch, see config.log"])
        rm -f conftest.cu conftest.cu.o])
      CPPFLAGS=$ts_save_CPPFLAGS LDFLAGS=$ts_save_LDFLAGS LIBS=$ts_save_LIBS])])
  AS_IF([test $ts_have_cuda = no && test "$with_cuda" != no && test "$with_cuda" != auto], [AC_MSG_ERROR([--with-cuda was given, but: $ts_cuda_why])])
  AS_VAR_IF([ts_have_cuda], [yes], [
    NVCCFLAGS="${NVCCFLAGS--O3 -lineinfo} $ts_gencode"
    ts_cuda_text="cuda ($with_cuda_arch, attention: own"
    AS_VAR_IF([ts_have_cudnn], [yes], [ts_cuda_text="$ts_cuda_text and cudnn"], [AS_VAR_IF([with_cudnn], [no], [], [ts_cuda_text="$ts_cuda_text; no cudnn.h"])])
    ts_cuda_text="$ts_cuda_text)"],
    [CUDA_CPPFLAGS= CUDA_LDFLAGS= CUDA_LIBS= ts_cuda_text="no cuda: $ts_cuda_why"])
  AC_SUBST([CUDA_CPPFLAGS]) AC_SUBST([CUDA_LDFLAGS]) AC_SUBST([CUDA_LIBS])
  AM_CONDITIONAL([HAVE_CUDA], [test $ts_have_cuda = yes])
  AM_CONDITIONAL([HAVE_CUDNN], [test $ts_have_cudnn = yes])
])
