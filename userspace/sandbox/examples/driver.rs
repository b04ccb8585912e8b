//! A real driver that makes requests to a database and says what came of them, for guests that have nothing but it: `driver
//! ADDRESS REQUESTS`. Prints how many were answered, and how many of these by an error.

use std::{net::SocketAddr, sync::Arc};

use anyhow::{Context, ensure};
use sandbox::driver::{Client, ERROR_EVERY, drive};

/// The driver's requests that are out at the same time.
const IN_FLIGHT: usize = 4;

fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let (address, requests) = arguments
        .next()
        .zip(arguments.next())
        .context("expected: driver ADDRESS REQUESTS")?;
    let (address, requests): (SocketAddr, usize) = (address.parse()?, requests.parse()?);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let seen = runtime.block_on(async {
        let client = Arc::new(Client::connect(address, 1).await?);
        drive(&client, requests, IN_FLIGHT).await
    })?;
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
    Ok(())
}
