//! What the examples run on.

use convoke::{Cluster, Code, Device, Error, Result, Token};

/// The cluster at `HOST:PORT TOKEN_FILE`, where the command line names one, else one of `workers` in this process.
pub async fn cluster(workers: usize) -> Result<Cluster> {
    let mut arguments = std::env::args().skip(1);
    match (arguments.next(), arguments.next()) {
        (Some(address), Some(token)) => convoke::connect(&address, Token::from_file(token)?).await,
        (None, _) => convoke::embedded(workers).await,
        _ => Err(Error::new(
            Code::InvalidArgument,
            "usage: EXAMPLE [HOST:PORT TOKEN_FILE]",
        )),
    }
}

/// The devices of all workers, of which there are `least` at least.
pub async fn devices(cluster: &Cluster, least: usize) -> Result<Vec<Device>> {
    let devices = cluster.devices().await?;
    if devices.len() < least {
        let msg = format!("this takes {least} workers");
        return Err(Error::new(Code::NoWorkers, msg));
    }
    Ok(devices)
}
