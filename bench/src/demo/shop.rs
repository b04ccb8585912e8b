//! The demo's applications: the load generator with a driver, two tables, every common kind of statement.

use std::net::SocketAddr;

use anyhow::Context;
use load::{
    order::{Credentials, Hello, Seed},
    workload::{self, Job},
};
use scylla::client::{session::Session, session_builder::SessionBuilder};
use tokio::runtime::Runtime;

/// The keyspace in which the applications work.
pub const KEYSPACE: &str = "underpass_demo";
/// The statement that an operator should not execute.
pub const TRUNCATE: &str = "TRUNCATE underpass_demo.orders";

/// The database, and the requests that applications make of it.
pub struct Shop {
    /// The address that every application dials.
    pub to: SocketAddr,
    /// The role to log in as.
    pub credentials: Option<Credentials>,
    work: Job,
    reports: Job,
}

impl Shop {
    /// Applications that ask for so many operations in a second, each.
    pub fn new(
        to: SocketAddr,
        credentials: Option<Credentials>,
        rate: u32,
    ) -> anyhow::Result<Self> {
        let shop = workload::parse("shop", include_str!("shop.toml"))?;
        let job = |id: &str| {
            let variant = shop.variants.iter().find(|variant| variant.id == id);
            variant
                .map(|variant| variant.job.clone())
                .context("no such job")
        };
        let work = Job {
            rate: Some(f64::from(rate)),
            ..job("shop")?
        };
        Ok(Self {
            to,
            credentials,
            work,
            reports: job("shop-reports")?,
        })
    }

    /// The requests in flight of an application, at the most.
    pub fn in_flight(&self) -> usize {
        self.work.connections * self.work.depth
    }

    /// Makes the tables, with orders that are there at the beginning.
    pub fn open(&self) -> anyhow::Result<()> {
        load::prepare(&self.work, &[self.to], self.credentials.as_ref())
    }

    /// Takes the tables away.
    pub fn close(&self) -> anyhow::Result<()> {
        load::clear(&self.work, &[self.to], self.credentials.as_ref())
    }

    /// The orders that an application has from the beginning on.
    pub fn hello(&self, number: u64) -> Hello {
        self.hello_of(&self.work, number)
    }

    /// An application that makes a report each second, for which the database reads the whole table.
    pub fn reports(&self) -> Hello {
        self.hello_of(&self.reports, 0)
    }

    fn hello_of(&self, job: &Job, number: u64) -> Hello {
        Hello {
            job: job.clone(),
            targets: vec![self.to],
            credentials: self.credentials.clone(),
            seed: Seed { value: 1, number },
            introduce: false,
        }
    }

    /// A session of the driver, of this thread's process and cgroup.
    pub async fn session(&self) -> anyhow::Result<Session> {
        let mut builder = SessionBuilder::new().known_node_addr(self.to);
        if let Some(Credentials { user, password }) = &self.credentials {
            builder = builder.user(user, password);
        }
        let session = builder.build().await;
        session.with_context(|| format!("the driver cannot connect to {}", self.to))
    }

    /// Executes a statement. Returns how it failed, if it did.
    pub fn execute(&self, statement: &str) -> anyhow::Result<Option<String>> {
        runtime()?.block_on(async {
            let session = self.session().await?;
            let done = session.query_unpaged(statement, ()).await;
            Ok(done.err().map(|error| error.to_string()))
        })
    }
}

/// A runtime that does all on the thread which waits for it.
pub fn runtime() -> anyhow::Result<Runtime> {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    Ok(runtime.enable_all().build()?)
}

/// Returns how many orders there are.
pub async fn orders(session: &Session) -> anyhow::Result<i64> {
    let text = format!("SELECT count(*) FROM {KEYSPACE}.orders");
    let rows = session.query_unpaged(&*text, ()).await.context(text)?;
    let (orders,) = rows.into_rows_result()?.first_row::<(i64,)>()?;
    Ok(orders)
}

/// Returns the clients that the database reports as connected.
pub async fn clients(session: &Session) -> anyhow::Result<Vec<SocketAddr>> {
    let query = "SELECT address, port FROM system_views.clients";
    let rows = session.query_unpaged(query, ()).await.context(query)?;
    let rows = rows.into_rows_result()?;
    rows.rows::<(std::net::IpAddr, i32)>()?
        .map(|row| {
            let (address, port) = row?;
            Ok(SocketAddr::new(address, u16::try_from(port)?))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn applications_work_and_report() {
        let to = SocketAddr::from(([127, 0, 0, 1], 9042));
        let shop = Shop::new(to, None, 100).unwrap();
        let names = |job: &Job| -> Vec<String> {
            let active = job.operations.iter().filter(|o| o.is_active());
            active.map(|operation| operation.name.clone()).collect()
        };
        assert_eq!(names(&shop.reports), ["report"]);
        assert_eq!(names(&shop.work).len(), 6);
        assert_eq!(
            (shop.work.rate, shop.reports.rate),
            (Some(100.0), Some(1.0))
        );
    }
}
