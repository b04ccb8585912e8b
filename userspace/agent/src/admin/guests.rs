//! Room for those who ask at the admin interface: whoever can reach it must not be able to take the
//! agent's descriptors away, nor to keep a probe from its answer.
//!
//! A new connection is always let in. Where there are too many, the one that has moved no byte for longest makes room: of
//! the same peer where that peer has too many, else of the peer that has most.

use std::{
    net::{IpAddr, Ipv6Addr},
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::Notify,
    time::{self, Instant},
};

/// A scraper, probes, an operator, and some to spare.
pub(super) const MAX_CONNECTIONS: usize = 64;

/// Connections of one user on the admin socket, or of one address on TCP.
pub(super) const MAX_OF_A_PEER: usize = 16;

/// A party whose connections are counted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Peer {
    /// A user of this host, by the admin socket.
    User(u32),
    /// An address; of IPv6, its /64.
    Address(IpAddr),
}

impl Peer {
    pub(super) fn address(ip: IpAddr) -> Self {
        Self::Address(match ip.to_canonical() {
            IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64).into(),
            v4 => v4,
        })
    }
}

/// The connections that are open.
#[derive(Debug)]
pub(super) struct Guests {
    open: Mutex<Vec<Arc<Guest>>>,
    since: Instant,
}

#[derive(Debug)]
struct Guest {
    peer: Peer,
    /// Milliseconds after [`Guests::since`], at which a byte moved last.
    moved: AtomicU64,
    sent_away: Notify,
    /// Whether the answer has no end, so that only its silence counts.
    goes_on: AtomicBool,
}

/// The right of an answer to take longer than others.
#[derive(Clone, Debug)]
pub(super) struct Stay(Arc<Guest>);

impl Stay {
    /// Lets the answer go on for as long as somebody reads it.
    pub(super) fn goes_on(&self) {
        self.0.goes_on.store(true, Relaxed);
    }
}

/// A connection's place among the others, until it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    guests: Arc<Guests>,
    guest: Arc<Guest>,
}

impl Guests {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            open: Mutex::default(),
            since: Instant::now(),
        })
    }

    /// Lets a connection in. Returns its place, and whether another one had to make room.
    pub(super) fn enter(self: &Arc<Self>, peer: Peer) -> (Place, bool) {
        let mut open = self.open();
        let of = |peer| open.iter().filter(|guest| guest.peer == peer).count();
        let most = open.iter().map(|guest| of(guest.peer)).max().unwrap_or(0);
        let makes_room = |guest: &Guest| match of(peer) >= MAX_OF_A_PEER {
            true => guest.peer == peer,
            false => open.len() >= MAX_CONNECTIONS && of(guest.peer) == most,
        };
        let crowd = open.iter().enumerate().filter(|(_, g)| makes_room(g));
        let leaves = crowd
            .min_by_key(|(_, g)| g.moved.load(Relaxed))
            .map(|(n, _)| n);
        if let Some(n) = leaves {
            open.swap_remove(n).sent_away.notify_one();
        }
        let guest = Arc::new(Guest {
            peer,
            moved: AtomicU64::new(self.now()),
            sent_away: Notify::new(),
            goes_on: AtomicBool::new(false),
        });
        open.push(guest.clone());
        let place = Place {
            guests: self.clone(),
            guest,
        };
        (place, leaves.is_some())
    }

    fn open(&self) -> MutexGuard<'_, Vec<Arc<Guest>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> u64 {
        self.since.elapsed().as_millis() as u64
    }

    #[cfg(test)]
    fn count(&self) -> usize {
        self.open().len()
    }
}

impl Place {
    /// Ends when another connection needs the room.
    pub(super) fn sent_away(&self) -> impl Future<Output = ()> + use<> {
        let guest = self.guest.clone();
        async move { guest.sent_away.notified().await }
    }

    /// Returns the party whose connection it is.
    pub(super) fn peer(&self) -> Peer {
        self.guest.peer
    }

    /// Returns the right to stay.
    pub(super) fn stay(&self) -> Stay {
        Stay(self.guest.clone())
    }

    /// Ends when the connection has had this time for its answer; if the answer goes on, when it has moved no byte for
    /// as long.
    pub(super) fn overstays(&self, limit: Duration) -> impl Future<Output = ()> + use<> {
        let (guests, guest) = (self.guests.clone(), self.guest.clone());
        async move {
            let mut until = guests.since + Duration::from_millis(guests.now()) + limit;
            loop {
                time::sleep_until(until).await;
                let moved = guests.since + Duration::from_millis(guest.moved.load(Relaxed));
                match guest.goes_on.load(Relaxed) {
                    true if moved + limit > Instant::now() => until = moved + limit,
                    _ => return,
                }
            }
        }
    }

    /// Makes a stream's bytes count as signs of life.
    pub(super) fn watch<S>(self, stream: S) -> Watched<S> {
        Watched {
            stream,
            place: self,
        }
    }

    fn moves<T>(&self, polled: Poll<T>) -> Poll<T> {
        if polled.is_ready() {
            self.guest.moved.store(self.guests.now(), Relaxed);
        }
        polled
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = self.guests.open();
        open.retain(|guest| !Arc::ptr_eq(guest, &self.guest));
    }
}

/// A stream with a place.
#[derive(Debug)]
pub(super) struct Watched<S> {
    stream: S,
    place: Place,
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_read(cx, buffer);
        self.place.moves(polled)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.place.moves(polled)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    fn at(n: u8) -> Peer {
        Peer::address([127, 0, 0, n].into())
    }

    /// A connection that moved its last byte at this time.
    fn enter(guests: &Arc<Guests>, peer: Peer, moved: u64) -> Place {
        let (place, _) = guests.enter(peer);
        place.guest.moved.store(moved, Relaxed);
        place
    }

    fn is_sent_away(place: &Place) -> bool {
        let mut waits = Box::pin(place.sent_away());
        let mut cx = Context::from_waker(Waker::noop());
        waits.as_mut().poll(&mut cx).is_ready()
    }

    #[test]
    fn the_one_that_is_silent_for_longest_makes_room() {
        let guests = Guests::new();
        let enters = |n: usize| enter(&guests, at(1), n as u64);
        let places: Vec<_> = (0..MAX_OF_A_PEER).map(enters).collect();
        places[0].guest.moved.store(1_000, Relaxed);
        let (last, made_room) = guests.enter(at(1));
        assert!(made_room);
        let gone: Vec<bool> = places.iter().map(is_sent_away).collect();
        assert_eq!(gone.iter().position(|gone| *gone), Some(1));
        assert_eq!(gone.iter().filter(|gone| **gone).count(), 1);
        assert!(!is_sent_away(&last));
        drop((places, last));
        assert_eq!(guests.count(), 0);
    }

    #[test]
    fn a_crowd_does_not_send_others_away() {
        let guests = Guests::new();
        let probe = enter(&guests, Peer::User(0), 0);
        let enters = |n: u64| enter(&guests, at((n % 8) as u8), n);
        let crowd: Vec<_> = (1..1000).map(enters).collect();
        assert_eq!(guests.count(), MAX_CONNECTIONS);
        assert!(!is_sent_away(&probe));
        drop(crowd);
        assert_eq!(guests.count(), 1);
    }

    #[test]
    fn bytes_count_as_signs_of_life() {
        let guests = Guests::new();
        let place = enter(&guests, at(1), u64::MAX);
        assert!(place.moves(Poll::<()>::Pending).is_pending());
        assert_eq!(place.guest.moved.load(Relaxed), u64::MAX);
        assert!(place.moves(Poll::Ready(())).is_ready());
        assert_ne!(place.guest.moved.load(Relaxed), u64::MAX);
    }

    /// How long a connection may stay, in multiples of its limit; `moves` so many times, half a limit apart.
    fn stays(goes_on: bool, moves: u32) -> f64 {
        const LIMIT: Duration = Duration::from_millis(100);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        runtime.block_on(async {
            let (place, _) = Guests::new().enter(at(1));
            if goes_on {
                place.stay().goes_on();
            }
            let begun = Instant::now();
            let reads = async {
                for _ in 0..moves {
                    time::sleep(LIMIT / 2).await;
                    let _ = place.moves(Poll::Ready(()));
                }
                std::future::pending::<()>().await;
            };
            tokio::select! {
                () = place.overstays(LIMIT) => {}
                () = reads => {}
            }
            begun.elapsed().as_secs_f64() / LIMIT.as_secs_f64()
        })
    }

    #[test]
    fn an_answer_that_goes_on_stays_while_somebody_reads_it() {
        // An answer has its time, however much of it is read.
        let plain = stays(false, 10);
        assert!((1.0..5.5).contains(&plain), "{plain}");
        let read = stays(true, 10);
        assert!(read > 2.0, "{read}");
        let unread = stays(true, 0);
        assert!((1.0..5.5).contains(&unread), "{unread}");
    }

    #[test]
    fn addresses_of_one_network_are_one_peer() {
        let of = |ip: &str| Peer::address(ip.parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
    }
}
