//! The whole `convoke` command for the tests, whose workers have the ops of this crate, also those of
//! `convoke-custom up`. In the environment, `OPS=none` leaves the ops out, and `OPS=other` registers another op under
//! the name of one of them.

use std::process::ExitCode;

use convoke_custom_op::faulty;

fn main() -> ExitCode {
    let registered = match std::env::var("OPS").as_deref() {
        Ok("none") => Ok(()),
        Ok("other") => faulty::register(&faulty::OTHER),
        _ => faulty::register(&faulty::FAULTY).and_then(|()| convoke_custom_op::register()),
    };
    registered.expect("the first definitions of their names");
    convoke_cli::main()
}
