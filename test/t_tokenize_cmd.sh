#!/bin/sh
# pretrain tokenize as a user calls it: what h5dump sees, exit codes, one sentence for each mistake. Prints TAP.
n=0
ok () {  # ok STATUS WHAT
  n=$((n + 1))
  if [ "$1" -eq 0 ]; then echo "ok $n - $2"; else echo "not ok $n - $2"; sed 's/^/# /' "$dir/said"; fi
}
case $builddir in /*) ;; *) builddir=$PWD/$builddir ;; esac
pretrain=$builddir/src/pretrain
dir=$(mktemp -d) || exit 99
trap 'rm -rf "$dir"' EXIT
cd "$dir" || exit 99

printf 'first\n\nsecond\n' >in.txt
"$pretrain" tokenize --tokenizer bytes --documents blank in.txt out.h5 >said 2>&1
ok $? 'a token file is made'
[ "$(wc -l <said)" -eq 1 ] && grep -q '^out.h5: 15 tokens, 2 documents, vocabulary 257' said
ok $? 'one line says what is in it'
if command -v h5dump >/dev/null; then
  h5dump -p -d /tokens -w 0 out.h5 >said 2>&1
  grep -q 'H5T_STD_U16LE' said && grep -q 'CONTIGUOUS' said &&
    grep -q '(0): 102, 105, 114, 115, 116, 10, 256, 115, 101, 99, 111, 110, 100, 10, 256' said
  ok $? 'h5dump sees contiguous uint16'
fi
printf 'x' | "$pretrain" tokenize - - pipe.h5 >said 2>&1
ok $? 'standard input'
"$pretrain" tokenize --tokenizer bytes gone.txt other.h5 >said 2>&1
[ $? -eq 2 ] && [ "$(cat said)" = 'pretrain: cannot open gone.txt: No such file or directory' ] && [ ! -e other.h5 ]
ok $? 'a missing input: exit 2, one sentence, no file'
"$pretrain" tokenize --tokeniser bytes in.txt other.h5 >said 2>&1
[ $? -eq 2 ] && [ "$(wc -l <said)" -eq 1 ] && grep -q -- '--tokeniser' said
ok $? 'an unknown option: exit 2, named'
"$pretrain" tokenize --help >said 2>&1 && grep -q '^usage: pretrain tokenize' said
ok $? '--help'
[ "$(ls | tr '\n' ' ')" = 'in.txt out.h5 pipe.h5 said ' ]
ok $? 'nothing else is left behind'
echo "1..$n"
