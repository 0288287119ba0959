//! The cluster and the devices that the examples run on.

use convoke::{Cluster, Code, Device, Error, Result, Token};

/// Connects to the cluster at `HOST:PORT TOKEN_FILE`, where the command line names one; else starts one of `workers`
/// workers in this process.
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

/// Returns the devices of all workers. Fails where there are fewer than `least`.
pub async fn devices(cluster: &Cluster, least: usize) -> Result<Vec<Device>> {
    let devices = cluster.devices().await?;
    if devices.len() < least {
        let msg = format!("this takes {least} workers");
        return Err(Error::new(Code::NoWorkers, msg));
    }
    Ok(devices)
}
