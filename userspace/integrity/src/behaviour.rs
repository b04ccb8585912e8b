//! Behaviours of connections and their ends, by name.

/// Gives an enum without fields its variants in a row, and their names.
macro_rules! named {
    ($(#[$doc:meta])* $name:ident { $($(#[$each:meta])* $variant:ident => $label:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name { $($(#[$each])* $variant),+ }

        impl $name {
            /// Every behaviour.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// Name on the command line and in reports.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $label),+ }
            }
        }
    };
}

named! {
    /// Pattern of a connection's traffic.
    Shape {
        /// The client sends.
        BulkUp => "bulk-up",
        /// The server sends.
        BulkDown => "bulk-down",
        /// Both send at once.
        Duplex => "duplex",
        /// 128 bytes and 256 bytes in turns.
        PingPong => "ping-pong",
        /// Requests and answers, many requests on their way at once.
        Pipelined => "pipelined",
        /// The client ends its direction first, and most of what the server sends comes after.
        HalfCloseClient => "half-close-client",
        /// The server ends its direction first.
        HalfCloseServer => "half-close-server",
        /// One end reads 4 KB at a time, with pauses.
        SlowReader => "slow-reader",
        /// One end stops reading for a while.
        StoppedReader => "stopped-reader",
        /// The client resets.
        ClientReset => "client-reset",
        /// The server resets.
        ServerReset => "server-reset",
        /// The client closes although there is more to read.
        CloseUnread => "close-unread",
        /// The client's process is killed.
        ClientKilled => "client-killed",
        /// The server's process is killed.
        ServerKilled => "server-killed",
    }
}

named! {
    /// How an end waits for its socket.
    Waiting {
        /// In the call that reads or writes.
        Blocking => "blocking",
        /// In poll(2).
        Poll => "poll",
        /// In epoll(7), level-triggered.
        Level => "epoll-level",
        /// In epoll(7), edge-triggered.
        Edge => "epoll-edge",
    }
}

named! {
    /// How an end reads.
    Reading {
        /// recv(2).
        Recv => "recv",
        /// Looked at with MSG_PEEK first.
        Peek => "peek",
        /// Reads of as many bytes as FIONREAD says.
        Fionread => "fionread",
        /// MSG_WAITALL; only where reading blocks.
        WaitAll => "waitall",
        /// readv(2).
        Readv => "readv",
        /// Reads as nginx does: what the buffer holds, then FIONREAD, and nothing more where that says 0.
        AsksFirst => "asks-first",
        /// SO_RCVLOWAT; only where reading blocks.
        LowAt => "rcvlowat",
        /// splice(2), into a pipe.
        Splice => "splice",
        /// recvmsg(2), with the times at which packets came.
        Timestamps => "timestamps",
    }
}

named! {
    /// How an end writes.
    Writing {
        /// send(2).
        Send => "send",
        /// writev(2).
        Writev => "writev",
        /// MSG_MORE, but at the end of what may be sent.
        More => "more",
        /// sendfile(2), from a memfd.
        Sendfile => "sendfile",
        /// send(2), and TCP_INFO and SIOCOUTQ after it.
        Asks => "asks-tcp",
    }
}

/// The behaviours that a run chooses from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choices {
    pub(super) shapes: Vec<Shape>,
    pub(super) waitings: Vec<Waiting>,
    pub(super) readings: Vec<Reading>,
    pub(super) writings: Vec<Writing>,
}

impl Default for Choices {
    fn default() -> Self {
        Self {
            shapes: Shape::ALL.to_vec(),
            waitings: Waiting::ALL.to_vec(),
            readings: Reading::ALL.to_vec(),
            writings: Writing::ALL.to_vec(),
        }
    }
}

impl Choices {
    /// The named choices. A kind of which none is named keeps all its choices.
    ///
    /// # Errors
    /// Nothing has this name.
    pub fn named(names: &[impl AsRef<str>]) -> anyhow::Result<Self> {
        let names: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
        if let Some(unknown) = names.iter().find(|name| !Self::names().contains(name)) {
            anyhow::bail!(
                "there is no behaviour {unknown:?}; there are {}",
                Self::names().join(", ")
            );
        }
        Ok(Self {
            shapes: among(Shape::ALL, |b| names.contains(&b.name())),
            waitings: among(Waiting::ALL, |b| names.contains(&b.name())),
            readings: among(Reading::ALL, |b| names.contains(&b.name())),
            writings: among(Writing::ALL, |b| names.contains(&b.name())),
        })
    }

    /// Every name there is.
    pub fn names() -> Vec<&'static str> {
        let shapes = Shape::ALL.iter().map(|b| b.name());
        let waitings = Waiting::ALL.iter().map(|b| b.name());
        let readings = Reading::ALL.iter().map(|b| b.name());
        let writings = Writing::ALL.iter().map(|b| b.name());
        shapes
            .chain(waitings)
            .chain(readings)
            .chain(writings)
            .collect()
    }

    /// Without those that need another process to be killed.
    pub(super) fn without_kills(mut self) -> Self {
        self.shapes.retain(|shape| !shape.kills());
        self
    }

    /// The choices as one number, for the wire.
    pub(super) fn bits(&self) -> u64 {
        set(Shape::ALL, &self.shapes)
            | set(Waiting::ALL, &self.waitings) << 16
            | set(Reading::ALL, &self.readings) << 32
            | set(Writing::ALL, &self.writings) << 48
    }

    pub(super) fn from_bits(bits: u64) -> Self {
        Self {
            shapes: members(Shape::ALL, bits),
            waitings: members(Waiting::ALL, bits >> 16),
            readings: members(Reading::ALL, bits >> 32),
            writings: members(Writing::ALL, bits >> 48),
        }
    }
}

impl Shape {
    /// How often it is chosen, against the others.
    pub(super) fn weight(self) -> usize {
        match self {
            Self::Duplex => 4,
            Self::BulkUp | Self::BulkDown | Self::PingPong | Self::Pipelined => 2,
            Self::HalfCloseClient | Self::HalfCloseServer | Self::StoppedReader => 2,
            _ => 1,
        }
    }

    pub(super) fn kills(self) -> bool {
        matches!(self, Self::ClientKilled | Self::ServerKilled)
    }

    /// Whether the connection ends before everything was sent.
    pub(super) fn aborts(self) -> bool {
        self.kills()
            || matches!(
                self,
                Self::ClientReset | Self::ServerReset | Self::CloseUnread
            )
    }
}

fn among<T: Copy>(all: &[T], named: impl Fn(&T) -> bool) -> Vec<T> {
    let some: Vec<T> = all.iter().copied().filter(named).collect();
    if some.is_empty() { all.to_vec() } else { some }
}

fn set<T: PartialEq>(all: &[T], chosen: &[T]) -> u64 {
    let bits = all.iter().enumerate().filter(|(_, b)| chosen.contains(b));
    bits.fold(0, |bits, (at, _)| bits | 1 << at)
}

fn members<T: Copy>(all: &[T], bits: u64) -> Vec<T> {
    let present = all.iter().enumerate().filter(|(at, _)| bits >> at & 1 == 1);
    present.map(|(_, &b)| b).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_survive_the_wire() {
        for choices in [
            Choices::default(),
            Choices::default().without_kills(),
            Choices::named(&["duplex", "peek", "epoll-edge", "sendfile", "server-killed"]).unwrap(),
        ] {
            assert_eq!(Choices::from_bits(choices.bits()), choices);
        }
    }

    #[test]
    fn an_unknown_name_is_an_error_that_lists_the_known_ones() {
        let error = Choices::named(&["duplexx"]).unwrap_err().to_string();
        assert!(error.contains("duplexx") && error.contains("ping-pong"));
    }
}
