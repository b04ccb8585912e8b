//! Load generators of others: programs that we start on each path as anybody would, and whose own figures we take. So nobody has
//! to trust our generator.

mod latte;
mod ycsb;

use std::{net::SocketAddr, path::Path, process::Command};

use load::order::Credentials;
use report::schema::{Latency, Origin};

/// All of them.
pub const ALL: [&dyn Other; 2] = [&latte::Latte, &ycsb::Ycsb];

/// A load generator.
pub trait Other: Sync {
    /// The name on the command line, which is also the name of its folder.
    fn name(&self) -> &'static str;

    /// Where it comes from, and how it differs here from what it usually does.
    fn origin(&self) -> Origin;

    /// The loads that it can make: their names and titles.
    fn loads(&self) -> &'static [(&'static str, &'static str)];

    /// The programs that make its tables and fill them, one after the other.
    fn prepare(&self, home: &Path, at: &Access) -> Vec<Command>;

    /// The program that makes a load for so many seconds. It may write a file of results.
    fn command(
        &self,
        home: &Path,
        load: &str,
        at: &Access,
        seconds: f64,
        results: &Path,
    ) -> Command;

    /// Reads what it has measured: from that file, or from its standard output.
    ///
    /// # Errors
    /// The output lacks a figure, or has one that cannot be read.
    fn figures(&self, results: &Path, said: &str) -> anyhow::Result<Figures>;

    /// The seconds of a turn, unless somebody says otherwise: enough for what starts with it.
    fn seconds(&self) -> f64;

    /// The rounds, unless somebody says otherwise: latte's loads end within ten minutes, YCSB's within a quarter of an hour.
    fn rounds(&self) -> u32;

    /// The connections that it opens for its load, and the requests in flight on all of them.
    fn shape(&self) -> (usize, usize);
}

/// A place where something answers as the database does.
pub struct Access {
    /// The address.
    pub target: SocketAddr,
    /// The role to log in as.
    pub credentials: Credentials,
}

/// The figures that a generator has measured in one run.
#[derive(Debug, Default, PartialEq)]
pub struct Figures {
    /// The time in which it worked.
    pub seconds: f64,
    /// Operations that succeeded.
    pub ops: u64,
    /// Operations that failed.
    pub errors: u64,
    /// Latencies.
    pub latency: Latency,
}

/// The generator of this name.
pub fn named(name: &str) -> Option<&'static dyn Other> {
    ALL.into_iter().find(|other| other.name() == name)
}
