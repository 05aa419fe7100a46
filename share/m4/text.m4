# TS_TEXT: libraries for tokenizers, each optional: PCRE2 and utf8proc for tokenizer.json, SentencePiece (C++) for its models.
AC_DEFUN([TS_TEXT], [
ts_text= ts_text_missing=
AC_ARG_WITH([pcre2], [AS_HELP_STRING([--without-pcre2], [do not read tokenizer.json])])
ts_pcre2=no
AS_IF([test "x$with_pcre2" != xno], [
  AC_CHECK_HEADER([pcre2.h], [AC_CHECK_LIB([pcre2-8], [pcre2_match_8], [ts_pcre2=yes LIBS="-lpcre2-8 $LIBS"
    AC_DEFINE([HAVE_PCRE2], [1], [Define if PCRE2 is used])])], [], [[#define PCRE2_CODE_UNIT_WIDTH 8]])])
AS_IF([test $ts_pcre2 = yes], [ts_text="$ts_text tokenizer.json"], [ts_text_missing="$ts_text_missing libpcre2-dev"])
AC_ARG_WITH([utf8proc], [AS_HELP_STRING([--without-utf8proc], [do not read a tokenizer.json that asks for NFC])])
ts_utf8proc=no
AS_IF([test "x$with_utf8proc" != xno], [
  AC_CHECK_HEADER([utf8proc.h], [AC_CHECK_LIB([utf8proc], [utf8proc_map], [ts_utf8proc=yes LIBS="-lutf8proc $LIBS"
    AC_DEFINE([HAVE_UTF8PROC], [1], [Define if utf8proc is used])])])])
AS_IF([test $ts_utf8proc = yes], [], [ts_text_missing="$ts_text_missing libutf8proc-dev"])
# A program in C++ links its objects with mpicc, so that the C++ library is named here.
AC_ARG_WITH([sentencepiece], [AS_HELP_STRING([--without-sentencepiece], [do not read SentencePiece models])])
ts_spm=no
AS_IF([test "x$with_sentencepiece" != xno], [
  AC_LANG_PUSH([C++])
  ts_save_LIBS=$LIBS
  AC_MSG_CHECKING([for SentencePiece])
  LIBS="-lsentencepiece $LIBS"
  AC_LINK_IFELSE([AC_LANG_PROGRAM([[#include <sentencepiece_processor.h>]], [[sentencepiece::SentencePieceProcessor p; return p.GetPieceSize ();]])],
    [ts_spm=yes], [])
  LIBS=$ts_save_LIBS
  AC_MSG_RESULT([$ts_spm])
  AC_LANG_POP([C++])])
AS_IF([test $ts_spm = yes], [ts_text="$ts_text SentencePiece" LIBS="$LIBS -lsentencepiece -lstdc++"
  AC_DEFINE([HAVE_SENTENCEPIECE], [1], [Define if SentencePiece is used])], [ts_text_missing="$ts_text_missing libsentencepiece-dev"])
AM_CONDITIONAL([HAVE_SENTENCEPIECE], [test $ts_spm = yes])
ts_text="bytes$ts_text"
AS_IF([test -n "$ts_text_missing"], [ts_text="$ts_text (missing:$ts_text_missing)"])
])
