//! Sockets that the splice cannot have: the flow is refused for the right reason, and nothing of it
//! stays behind.

#![expect(
    clippy::unwrap_used,
    reason = "tests say what they expect by failing, and so do their helpers"
)]

use std::{
    io::{Read, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, TcpStream},
    time::Duration,
};

use dataplane::{
    AgentMoved, Application, FlowPosition, Near, Splice, SpliceRefusal, Splicer, cookie,
};
use policy::Shortcut;
use socket2::SockRef;

/// A flow in the agent's hands: client ─ accepted, dialled ─ database.
struct Flow {
    client: TcpStream,
    accepted: TcpStream,
    dialled: TcpStream,
    database: TcpStream,
}

const V4: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const V6: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);
/// An IPv6 socket's way to an IPv4 address.
const MAPPED: IpAddr = IpAddr::V6(Ipv4Addr::LOCALHOST.to_ipv6_mapped());

impl Flow {
    fn new(dialled: IpAddr) -> Self {
        let pair = || {
            let listener = TcpListener::bind((dialled.to_canonical(), 0)).unwrap();
            let port = listener.local_addr().unwrap().port();
            let near = TcpStream::connect((dialled, port)).unwrap();
            let (far, _) = listener.accept().unwrap();
            for end in [&near, &far] {
                end.set_nodelay(true).unwrap();
                end.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
            }
            (near, far)
        };
        let ((client, accepted), (dialled, database)) = (pair(), pair());
        client.set_nonblocking(true).unwrap();
        Self {
            client,
            accepted,
            dialled,
            database,
        }
    }

    fn enrol(&self, splices: &Splicer) -> Result<Splice, SpliceRefusal> {
        let client = cookie(&SockRef::from(&self.client)).unwrap();
        self.enrol_as(splices, client)
    }

    fn enrol_as(
        &self,
        splices: &Splicer,
        client: dataplane::SockCookie,
    ) -> Result<Splice, SpliceRefusal> {
        let (accepted, dialled) = (SockRef::from(&self.accepted), SockRef::from(&self.dialled));
        splices.enrol(
            accepted,
            dialled,
            &Application::Client(client, None),
            Shortcut::Both,
            0,
        )
    }

    /// The kernel carries bytes both ways, past the agent's sockets.
    fn expect_carried(&mut self, splice: &Splice) {
        splice
            .engage(
                SockRef::from(&self.dialled),
                AgentMoved::default(),
                FlowPosition::UNKNOWN,
            )
            .unwrap();
        self.client.write_all(b"question").unwrap();
        let mut bytes = [0; 8];
        self.database.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"question");
        self.database.write_all(b"response").unwrap();
        self.client.set_nonblocking(false).unwrap();
        self.client.read_exact(&mut bytes).unwrap();
        self.client.set_nonblocking(true).unwrap();
        assert_eq!(&bytes, b"response");
        let moved = splice.moved().unwrap();
        assert_eq!((moved.up, moved.down), (8, 8));
    }
}

/// Within a runtime, as the ring wants it.
fn with_engines(test: impl FnOnce(&Splicer, &Splicer)) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let (one, _calls) = Splicer::open().unwrap();
        let (other, _calls) = Splicer::open().unwrap();
        test(&one, &other);
    });
}

#[test]
fn flows_of_every_family_are_carried() {
    with_engines(|splices, _| {
        for dialled in [V4, V6, MAPPED] {
            let mut flow = Flow::new(dialled);
            let splice = flow.enrol(splices).unwrap();
            flow.expect_carried(&splice);
        }
    });
}

#[test]
fn a_socket_of_another_sockmap_is_left_to_it() {
    with_engines(|splices, foreign| {
        let mut theirs = Flow::new(V4);
        let splice = theirs.enrol(foreign).unwrap();
        // The same client in another flow.
        let refused = theirs.enrol(splices).err();
        assert!(
            matches!(
                refused,
                Some(SpliceRefusal::Taken(Near::Client, _) | SpliceRefusal::SocketTaken(_))
            ),
            "{refused:?}"
        );
        theirs.expect_carried(&splice);
        let mut ours = Flow::new(V4);
        let splice = ours.enrol(splices).unwrap();
        ours.expect_carried(&splice);
    });
}

#[test]
fn sockets_that_are_gone_are_not_found() {
    with_engines(|splices, _| {
        let gone = Flow::new(V4);
        let client = cookie(&SockRef::from(&gone.client)).unwrap();
        SockRef::from(&gone.client)
            .set_linger(Some(Duration::ZERO))
            .unwrap();
        let Flow {
            client: closed,
            accepted,
            dialled,
            database,
        } = gone;
        drop(closed);
        // Somebody else's at the same time has another cookie.
        let left = Flow {
            client: TcpStream::connect(
                TcpListener::bind("127.0.0.1:0")
                    .unwrap()
                    .local_addr()
                    .unwrap(),
            )
            .unwrap(),
            accepted,
            dialled,
            database,
        };
        let refused = left.enrol_as(splices, client).err();
        assert!(
            matches!(
                refused,
                Some(SpliceRefusal::Gone(Near::Client) | SpliceRefusal::SocketGone)
            ),
            "{refused:?}"
        );

        // The number is that of the right socket, or it is none of ours.
        let flow = Flow::new(V4);
        let refused = flow.enrol_as(splices, client).err();
        assert!(
            matches!(refused, Some(SpliceRefusal::Gone(Near::Client))),
            "{refused:?}"
        );
    });
}

#[test]
fn a_client_that_blocks_and_a_database_that_has_spoken_are_refused() {
    with_engines(|splices, _| {
        let blocking = Flow::new(V4);
        blocking.client.set_nonblocking(false).unwrap();
        let refused = blocking.enrol(splices).err();
        assert!(
            matches!(refused, Some(SpliceRefusal::Blocks(Near::Client))),
            "{refused:?}"
        );

        let mut early = Flow::new(V4);
        early.database.write_all(b"first").unwrap();
        early.dialled.peek(&mut [0; 1]).unwrap();
        let refused = early.enrol(splices).err();
        assert!(matches!(refused, Some(SpliceRefusal::Busy)), "{refused:?}");
        // To be tried again.
        early.dialled.read_exact(&mut [0; 5]).unwrap();
        let splice = early.enrol(splices).unwrap();
        splice
            .engage(
                SockRef::from(&early.dialled),
                AgentMoved::default(),
                FlowPosition::UNKNOWN,
            )
            .unwrap();
        drop(splice);
        // What is dropped is forgotten, and its sockets are plain ones again.
        early.client.write_all(b"later").unwrap();
        let mut bytes = [0; 5];
        early.accepted.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"later");
    });
}
