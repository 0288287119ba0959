//! The whole `convoke` command, whose workers may have the device of this crate: `convoke-file run … --device file`,
//! `convoke-file worker … --device file`.

use std::process::ExitCode;

fn main() -> ExitCode {
    convoke_custom_device::register().expect("the first kind of this name");
    convoke_cli::main()
}
