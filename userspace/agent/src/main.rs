//! `underpass`: see `underpass --help`.

use std::process::ExitCode;

/// What a flow has while the agent reads its handshake leaves no holes among what it keeps. It is set up
/// where it is built, in `.cargo/config.toml`.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    agent::cli::main()
}
