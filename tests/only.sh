#!/bin/bash
# only.sh PACKAGES PROGRAM ARGUMENT... - runner of Cargo that runs the tests of PACKAGES, separated by commas,
# and skips those of others. So `cargo test --workspace` is built once, with the same features for every run.
case ",$1," in *",$CARGO_PKG_NAME,"*) exec "${@:2}";; esac
