//! The client of `.ci/months`: it connects once, works for as long as it runs, and prints a line for each piece of work
//! that was done. It ends at an error that waiting cannot mend.

use std::time::Duration;

use convoke::{Cluster, Code, Result, Token};

/// The pause between two pieces of work.
const PAUSE: Duration = Duration::from_millis(200);

async fn work(cluster: &Cluster) -> Result<f32> {
    cluster.status().await?;
    let x = cluster.device("w0")?.put(vec![0.5f32; 8])?;
    let y = x.relu()?.fetch::<Vec<f32>>().await?;
    Ok(y.iter().sum())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let (address, token) = (
        args.next().expect("an address"),
        args.next().expect("a token file"),
    );
    let cluster = convoke::connect(&address, Token::from_file(token)?).await?;
    loop {
        match work(&cluster).await {
            Ok(sum) => println!("{sum}"),
            Err(e) if matches!(e.code, Code::Unauthorized | Code::VersionMismatch) => {
                return Err(e);
            }
            // The coordinator may be restarting; the next try follows.
            Err(e) => eprintln!("{e}"),
        }
        tokio::time::sleep(PAUSE).await;
    }
}
