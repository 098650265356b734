//! The binary. Runs the command that the arguments name, in `cli.rs`, and exits with its code.

use std::process::ExitCode;

fn main() -> ExitCode {
    paceway::cli::main()
}
