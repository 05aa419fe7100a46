# TS_HDF5: parallel HDF5 is required. HDF5_CPPFLAGS and HDF5_LIBS, when set,
# are believed; else pkg-config is asked.
AC_DEFUN([TS_HDF5], [
  AC_ARG_VAR([HDF5_CPPFLAGS], [preprocessor flags for parallel HDF5])
  AC_ARG_VAR([HDF5_LIBS], [linker flags for parallel HDF5])
  AS_IF([test -z "$HDF5_LIBS"], [
    for ts_pc in hdf5-mpich hdf5-mpi hdf5; do
      AS_IF([pkg-config --exists $ts_pc], [
        HDF5_CPPFLAGS=`pkg-config --cflags $ts_pc`
        HDF5_LIBS=`pkg-config --libs-only-L --libs-only-l $ts_pc`
        break])
    done
    AS_IF([test -z "$HDF5_LIBS"], [HDF5_LIBS=-lhdf5])])
  ts_save_CPPFLAGS=$CPPFLAGS ts_save_LIBS=$LIBS
  CPPFLAGS="$CPPFLAGS $HDF5_CPPFLAGS" LIBS="$HDF5_LIBS $LIBS"
  AC_CHECK_DECL([H5_HAVE_PARALLEL], [], [AC_MSG_ERROR([HDF5 is missing or was built without MPI])],
    [[#include <hdf5.h>]])
  AC_CHECK_FUNC([H5Pset_fapl_mpio], [], [AC_MSG_ERROR([cannot link HDF5])])
  CPPFLAGS=$ts_save_CPPFLAGS LIBS=$ts_save_LIBS
])
