//! A driver's cases on a real Cassandra, which is outside the sandbox: connections are passed on to it.

use std::{
    any::Any,
    io,
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::Duration,
};

use scylla::client::session_builder::SessionBuilder;

use super::{log::TroubleKind, routes::Needs, run::Run, workload};
pub use crate::common::cassandra::Cassandra;

/// The route's name.
pub const NAME: &str = "driver";

/// The pause between two attempts, and between two looks for a connection.
const RETRY: Duration = Duration::from_millis(100);
const LOOK: Duration = Duration::from_millis(5);

const KEYSPACE: &str = "underpass_soak";

impl Cassandra {
    /// The rule for its connections.
    pub fn rule(&self) -> String {
        format!(
            "[[rule]]\nname = \"{NAME}\"\nto = [\":{}\"]\naction = \"enrich\"\nfail = \"closed\"\nshortcut = false\n\
             pipeline = [{{ transform = \"guard\", refuse = [\"roles\"] }}, {{ transform = \"stats\" }}]\n",
            self.addr.port()
        )
    }
}

/// Runs the cases over and over until the run is over. For a thread outside the sandbox.
pub fn works(run: &Run<'_>, cassandra: &Cassandra) {
    // At the node's own address: the driver dials what the node says of itself.
    let listener = run.sandbox.server(|| TcpListener::bind(cassandra.addr));
    let listener = listener.unwrap().unwrap();
    let (is_done, is_away) = (AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| pass_on(&listener, cassandra.addr, &is_done, &is_away));
        while !run.is_over() {
            round(run, cassandra);
            if is_away.load(Relaxed) {
                let text = "Cassandra takes no connections any more: the driver works no further";
                run.log.finding(text.to_owned());
                break;
            }
        }
        is_done.store(true, Relaxed);
    });
}

/// Runs the cases by a session of their own.
fn round(run: &Run<'_>, cassandra: &Cassandra) {
    let (from, of) = (run.log.now(), (NAME, Needs::Agent));
    let cases = || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.unwrap().block_on(async {
            let session = SessionBuilder::new()
                .known_node_addr(cassandra.addr)
                .user(&cassandra.user, &cassandra.password);
            let session = session.build().await.map_err(|error| error.to_string())?;
            workload::workload(&session, KEYSPACE).await;
            workload::run(&session, &format!("DROP KEYSPACE {KEYSPACE}")).await;
            Ok(())
        })
    };
    // A case that fails panics.
    let ran = thread::scope(|scope| scope.spawn(|| run.sandbox.client(cases)).join());
    match ran.map(Result::unwrap) {
        Ok(Ok(())) => {
            run.driver_rounds.fetch_add(1, Relaxed);
            return;
        }
        Ok(Err(text)) => run.log.trouble(of, TroubleKind::Refused, from, text),
        Err(panic) => {
            let text = panic_text(panic);
            // An answer has come, and is another one.
            match text.starts_with("assertion") {
                true => run.log.finding(format!("{NAME}: {text}")),
                false => run.log.trouble(of, TroubleKind::Cut, from, text),
            }
        }
    }
    thread::sleep(RETRY);
}

fn panic_text(panic: Box<dyn Any + Send>) -> String {
    let text = panic.downcast::<String>().map(|text| *text);
    text.unwrap_or_else(|panic| match panic.downcast::<&str>() {
        Ok(text) => (*text).to_owned(),
        Err(_) => "no text".to_owned(),
    })
}

/// Passes connections on until it is done. `is_away` becomes true when the node takes none.
fn pass_on(listener: &TcpListener, to: SocketAddr, is_done: &AtomicBool, is_away: &AtomicBool) {
    listener.set_nonblocking(true).unwrap();
    thread::scope(|scope| {
        while !is_done.load(Relaxed) {
            let Ok((client, _)) = listener.accept() else {
                thread::sleep(LOOK);
                continue;
            };
            client.set_nonblocking(false).unwrap();
            let Ok(database) = TcpStream::connect(to) else {
                is_away.store(true, Relaxed);
                continue;
            };
            let ends = [client, database];
            for end in &ends {
                end.set_nodelay(true).unwrap();
            }
            for (from, to) in [(0, 1), (1, 0)] {
                let [mut from, mut to] =
                    [from, to].map(|end: usize| ends[end].try_clone().unwrap());
                scope.spawn(move || {
                    // An end that breaks off ends the other one.
                    let how = match io::copy(&mut from, &mut to) {
                        Ok(_) => Shutdown::Write,
                        Err(_) => Shutdown::Both,
                    };
                    let _ = to.shutdown(how);
                });
            }
        }
    });
}
