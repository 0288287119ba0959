//! All of `convoke`, whose workers have the ops of this crate, `convoke-custom up` included: what the tests run. `OPS` in
//! the environment leaves them out (`none`), or takes another of the same name (`other`).

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
