#!/bin/bash
# miri.sh - run the unsafe code of `shm` and `memory`, and the decoders of `engine-api`, under Miri,
# which detects undefined behavior and data races. Needs a nightly toolchain:
# `rustup toolchain install nightly --profile minimal -c miri,rust-src`.
#
# Memory is private to the process, and tests that need sockets or a memfd are skipped.
set -e
cd "$(dirname "$0")/.."
export MIRIFLAGS="-Zmiri-disable-isolation ${MIRIFLAGS-}" PROPTEST_CASES=${MIRI_CASES:-8}
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target}/miri
cargo +nightly miri test -p isolane-shm -p isolane-memory --lib
cargo +nightly miri test -p isolane-engine-api --lib
