//! Arguments, a command, its exit code; nothing else.

use std::process::ExitCode;

fn main() -> ExitCode {
    paceway::cli::main()
}
