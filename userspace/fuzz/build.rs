//! Compiles the readers of the BPF programs for this host.

use std::env;

/// Flags by which a fuzzer sees C as it sees Rust; and arithmetic that C leaves undefined ends the program.
const FUZZED: [&str; 3] = [
    "-fsanitize-coverage=inline-8bit-counters,pc-table,trace-cmp",
    "-fsanitize=bounds,shift,signed-integer-overflow,null",
    "-fsanitize-trap=all",
];

fn main() {
    println!("cargo::rerun-if-changed=kernel");
    println!("cargo::rerun-if-changed=../../ebpf/src");
    println!("cargo::rerun-if-env-changed=UNDERPASS_CLANG");
    let mut build = cc::Build::new();
    build
        .files(["kernel/host.c", "kernel/edge.c"])
        .include("kernel");
    build.opt_level(1).warnings(false).flag("-std=gnu11");
    if env::var_os("CARGO_CFG_FUZZING").is_some() {
        let clang = env::var("UNDERPASS_CLANG").unwrap_or_else(|_| "clang-19".to_owned());
        build.compiler(clang);
        for flag in FUZZED {
            build.flag(flag);
        }
    }
    build.compile("underpass_readers");
}
