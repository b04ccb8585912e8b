//! A network namespace with somebody in it.

use std::{
    io::{Read, Write},
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    os::unix::fs::MetadataExt,
    process::{Child, Command},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::Duration,
};

use sandbox::{Netns, Sandbox, run_in};

use crate::common;

/// Nobody else is in a container of a test's own.
pub const PORT: u16 = 9042;

/// How often the agent looks who is there.
pub const TEND: Duration = Duration::from_secs(1);

/// Without a process of its own a namespace is nobody's: the clients are threads of the test.
pub struct Container<'a> {
    pub netns: Netns,
    pub resident: Resident,
    host: &'a Sandbox,
}

/// A process that does nothing. Killed when dropped.
pub struct Resident(Child);

impl<'a> Container<'a> {
    pub fn new(host: &'a Sandbox) -> Self {
        let netns = Netns::new().unwrap();
        let resident = Resident::new(&netns, host);
        Self {
            netns,
            resident,
            host,
        }
    }

    /// Another one in it.
    pub fn process(&self) -> Resident {
        Resident::new(&self.netns, self.host)
    }

    pub fn inode(&self) -> u64 {
        std::fs::metadata(self.netns.path()).unwrap().ino()
    }

    /// The database on its loopback.
    pub fn database(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, PORT).into()
    }

    pub fn client<T: Send>(&self, client: impl FnOnce() -> T + Send) -> T {
        run_in(Some(&self.netns), Some(&self.host.cgroup), client).unwrap()
    }

    pub fn listen(&self, at: IpAddr) -> TcpListener {
        let bind = || TcpListener::bind((at, PORT)).unwrap();
        run_in(Some(&self.netns), None, bind).unwrap()
    }

    /// Answers every OPTIONS while `body` runs.
    pub fn serve_while(&self, body: impl FnOnce()) {
        let listener = self.listen(self.database().ip());
        listener.set_nonblocking(true).unwrap();
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Relaxed) {
                    match listener.accept() {
                        Ok((client, _)) => drop(scope.spawn(move || answer(client))),
                        Err(_) => thread::sleep(Duration::from_micros(200)),
                    }
                }
            });
            // Also when it panics.
            let _done = Done(&done);
            body();
        });
    }
}

struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

fn answer(mut client: TcpStream) {
    client.set_nonblocking(false).unwrap();
    client.set_read_timeout(Some(common::PATIENCE)).unwrap();
    let mut request = [0; 9];
    while client.read_exact(&mut request).is_ok() {
        assert_eq!(request, common::options(request[3]));
        client.write_all(&common::supported(request[3])).unwrap();
    }
}

impl Resident {
    fn new(netns: &Netns, host: &Sandbox) -> Self {
        let start = || Command::new("sleep").arg("3600").spawn().unwrap();
        Self(run_in(Some(netns), Some(&host.cgroup), start).unwrap())
    }

    pub fn end(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Resident {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
