//! Prints imported models: `inspect [--quiet] MODEL…`. With `--quiet`, one line per model.

use std::process::ExitCode;

use convoke_common::Error;
use convoke_models::{LoadOptions, onnx};

fn main() -> ExitCode {
    let mut quiet = false;
    let mut failed = false;
    for arg in std::env::args_os().skip(1) {
        if arg == "--quiet" {
            quiet = true;
            continue;
        }
        let path = std::path::PathBuf::from(arg);
        match onnx::load(&path, &LoadOptions::default()) {
            Ok(m) if quiet => {
                let f = &m.function;
                println!(
                    "ok {} nodes={} literals={}",
                    path.display(),
                    f.nodes.len(),
                    f.literals.len()
                );
            }
            Ok(m) => {
                println!(
                    "# {} opset {} by '{}'",
                    path.display(),
                    m.info.opset,
                    m.info.producer
                );
                for s in &m.sources {
                    println!(
                        "# artifact {} {} bytes {}",
                        s.meta().id,
                        s.meta().len,
                        s.path().display()
                    );
                }
                print!("{}", m.function);
            }
            Err(e) => {
                failed = true;
                println!("{} {}: {}", e.code().name(), path.display(), Error::from(e));
            }
        }
    }
    if failed {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}
