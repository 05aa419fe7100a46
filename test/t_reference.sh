#!/bin/sh
# The referee's own tests: its gradients against finite differences, and the laws that its parts must keep.
exec "${PYTHON:-/usr/bin/python3}" "$srcdir/test/reference.py" --selftest
