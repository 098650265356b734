//! The binary. Runs the command that the arguments name, in `cli.rs`, and exits with its code.

use std::process::ExitCode;
#[cfg(feature = "jemalloc")]
use tikv_jemallocator::Jemalloc;

/// The allocator of glibc keeps the memory of a load peak for ever: 155 MiB a minute after 5,000 requests waited, of 170
/// at the peak. jemalloc returns it within 10 s, to 29 MiB (docs/decisions/014-jemalloc.md). Only the binary chooses an
/// allocator; a program that uses the library keeps its own.
#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

fn main() -> ExitCode {
    paceway::cli::main()
}
