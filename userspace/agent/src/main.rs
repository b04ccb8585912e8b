//! `underpass`: see `underpass --help`.

use std::process::ExitCode;

/// The allocator, with which the memory of a handshake leaves no holes among the memory that a flow
/// keeps. It is set up where it is built, in `.cargo/config.toml`.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    agent::cli::main()
}
