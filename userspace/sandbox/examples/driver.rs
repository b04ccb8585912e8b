//! A real driver that makes requests to a database and says what came of them, for guests that have nothing but it: `driver
//! ADDRESS REQUESTS SECONDS`. Prints how many were answered, and how many of these by an error; then keeps its connections for so
//! long.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use anyhow::{bail, ensure};
use sandbox::driver::{Client, ERROR_EVERY, drive};

/// The driver's requests that are out at the same time.
const IN_FLIGHT: usize = 4;

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [address, requests, seconds] = arguments.as_slice() else {
        bail!("expected: driver ADDRESS REQUESTS SECONDS");
    };
    let (address, requests): (SocketAddr, usize) = (address.parse()?, requests.parse()?);
    let stays = Duration::from_secs(seconds.parse()?);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let client = Arc::new(Client::connect(address, 1).await?);
        let seen = drive(&client, requests, IN_FLIGHT).await?;
        let meant = requests.div_ceil(ERROR_EVERY);
        ensure!(
            seen.errors == meant,
            "{} requests failed, and {meant} should",
            seen.errors
        );
        println!(
            "{} answered, {} by an error",
            seen.took_us.len(),
            seen.errors
        );
        tokio::time::sleep(stays).await;
        Ok(())
    })
}
