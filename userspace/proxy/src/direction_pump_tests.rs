//! One direction of a flow, on a runtime such as a worker has.

use std::{
    future::poll_fn,
    io::{Read as _, Write as _},
    mem::MaybeUninit,
    net,
    os::{fd::AsRawFd as _, unix::net::UnixStream},
    sync::atomic::AtomicBool,
    thread,
};

use dataplane::{ClientAddr, OrigDst, Process};
use policy::RuleName;
use prometheus::Registry;
use socket2::SockRef;
use telemetry::SendMetrics;
use tokio::{net::TcpStream, runtime};

use super::*;

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(10);

const PIECE: usize = 1024;
/// A share of a turn that surely waits in a socket.
const SHARE: usize = 4 * PIECE;
const TURNS: usize = 3;

fn on_a_worker(body: impl Future<Output = ()>) {
    let worker = runtime::Builder::new_current_thread().enable_all().build();
    let patiently = async { time::timeout(PATIENCE, body).await };
    worker.unwrap().block_on(patiently).unwrap();
}

/// Both ends of a connection: a peer's, and the worker's.
fn pair() -> (net::TcpStream, TcpStream) {
    let listener = net::TcpListener::bind("127.0.0.1:0").unwrap();
    let peers = net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    peers.set_read_timeout(Some(PATIENCE)).unwrap();
    let (own, _) = listener.accept().unwrap();
    own.set_nonblocking(true).unwrap();
    (peers, TcpStream::from_std(own).unwrap())
}

/// Waits until so many bytes are there to be read.
async fn arrived(at: &TcpStream, bytes: usize) {
    let mut there = vec![0; bytes];
    while at.peek(&mut there).await.unwrap() < bytes {}
}

fn pump() -> DirectionPump {
    let flow = Arc::new(Flow::begin(
        1,
        ClientAddr::new(([127, 0, 0, 1], 4000).into()),
        Process::elsewhere(),
        OrigDst::new(([127, 0, 0, 1], 9042).into()),
        RuleName::new("r"),
    ));
    let total = IntCounter::new("bytes", "Bytes.").unwrap();
    DirectionPump::new(Direction::ToDatabase, &flow, &total)
}

fn text(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|n| (n * 31 % 251) as u8).collect()
}

#[test]
fn a_turn_ends_with_its_share_and_neighbours_have_theirs_before_the_next() {
    on_a_worker(async {
        let ((mut source, from), (mut sink, to)) = (pair(), pair());
        let (mut neighbour, own) = pair();
        let said = text(TURNS * SHARE);
        source.write_all(&said).unwrap();
        arrived(&from, said.len()).await;
        let (own, heard) = (Arc::new(own), Arc::new(AtomicBool::new(false)));
        let (neighbours, tells) = (own.clone(), heard.clone());
        let hears = tokio::spawn(async move {
            neighbours.readable().await.unwrap();
            tells.store(true, Relaxed);
        });
        let moves = tokio::spawn(async move {
            let (mut pump, mut reader, mut turns) = (pump(), Reader::new(None), Vec::new());
            poll_fn(|cx| {
                pump.left = SHARE;
                let (before, was_heard) = (pump.read_bytes, heard.load(Relaxed));
                let (mut from, mut to) = (LegIo::Plain(&from), LegIo::Plain(&to));
                let moved = pump.poll(cx, &mut [0; PIECE], &mut from, &mut to, &mut reader);
                assert!(moved.is_pending());
                turns.push((pump.read_bytes - before, was_heard));
                if turns.len() == 1 {
                    neighbour.write_all(b"x").unwrap();
                    let at = SockRef::from(&*own);
                    while at.peek(&mut [MaybeUninit::uninit()]).is_err() {}
                }
                match turns.len() < TURNS {
                    true => Poll::Pending,
                    false => Poll::Ready(()),
                }
            })
            .await;
            turns
        });
        let turns = moves.await.unwrap();
        hears.await.unwrap();
        let share = SHARE as u64;
        assert_eq!(turns, [(share, false), (share, true), (share, true)]);
        let mut got = vec![0; said.len()];
        sink.read_exact(&mut got).unwrap();
        assert!(got == said);
    });
}

#[test]
fn bytes_behind_urgent_data_pass() {
    on_a_worker(async {
        let ((mut source, from), (mut sink, to)) = (pair(), pair());
        source.write_all(b"before").unwrap();
        assert_eq!(SockRef::from(&source).send_out_of_band(b"!").unwrap(), 1);
        source.write_all(b"behind").unwrap();
        arrived(&from, b"before".len()).await;
        let (mut pump, mut reader) = (pump(), Reader::new(None));
        let (mut from, mut to) = (LegIo::Plain(&from), LegIo::Plain(&to));
        let mut got = *b"beforebehind";
        poll_fn(|cx| {
            let moved = pump.poll(cx, &mut [0; PIECE], &mut from, &mut to, &mut reader);
            assert!(moved.is_pending());
            match pump.read_bytes < got.len() as u64 {
                true => Poll::Pending,
                false => Poll::Ready(()),
            }
        })
        .await;
        got.fill(0);
        sink.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"beforebehind");
    });
}

#[test]
fn a_flow_begins_each_turn_with_a_whole_share() {
    let mut pump = pump();
    pump.left = 0;
    assert!(pump.is_cut_short());
    pump.begin_turn();
    assert_eq!(pump.left, TURN_BYTES);
}

#[test]
fn what_has_waited_for_long_is_sent_after_a_chunk() {
    let metrics = SendMetrics::register(&Registry::new()).unwrap();
    outbox::install(outbox::SendRings::make(1, metrics).each().next().unwrap());
    on_a_worker(async {
        let ((mut source, from), (_sink, to)) = (pair(), pair());
        let (answered, _asks) = UnixStream::pair().unwrap();
        source.write_all(&text(PIECE)).unwrap();
        arrived(&from, PIECE).await;
        let answer = outbox::post(answered.as_raw_fd(), b"x", Waker::noop()).unwrap();
        thread::sleep(outbox::LONGEST);
        assert!(!answer.is_sent());
        let (mut pump, mut reader) = (pump(), Reader::new(None));
        let (mut from, mut to) = (LegIo::Plain(&from), LegIo::Plain(&to));
        // Nobody reads these bytes, so they pass the outbox by.
        poll_fn(|cx| {
            let moved = pump.poll(cx, &mut [0; 2 * PIECE], &mut from, &mut to, &mut reader);
            Poll::Ready(moved.is_pending())
        })
        .await;
        assert_eq!(pump.read_bytes, PIECE as u64);
        assert!(answer.is_sent());
    });
}
