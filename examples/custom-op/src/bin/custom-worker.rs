//! `convoke worker` with the custom op, and with the same flags.

use std::process::ExitCode;

fn main() -> ExitCode {
    convoke_custom_op::register().expect("the first definition of its name");
    convoke_cli::worker_main()
}
