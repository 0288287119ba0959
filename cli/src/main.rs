//! The binary `convoke`.

use std::process::ExitCode;

fn main() -> ExitCode {
    convoke_cli::main()
}
