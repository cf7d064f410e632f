#!/bin/bash
# miri.sh - the unsafe code of `ring` and `memory`, and the decoders of `engine-api`, under Miri, which finds
# undefined behaviour and data races in what a test does.  Needs a nightly toolchain:
# `rustup toolchain install nightly --profile minimal -c miri,rust-src`.
#
# Memory is this process's alone there, and what needs sockets or a memfd is left out.
set -e
cd "$(dirname "$0")/.."
export MIRIFLAGS="-Zmiri-disable-isolation ${MIRIFLAGS-}" PROPTEST_CASES=${MIRI_CASES:-8}
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target}/miri
cargo +nightly miri test -p isolane-shm -p isolane-memory --lib
cargo +nightly miri test -p isolane-engine-api --lib
