//! [`SendRing`]: many sends in one system call.

use std::{
    fmt, io,
    os::fd::{AsRawFd as _, RawFd},
    thread,
};

use io_uring::{IoUring, opcode, register::Restriction, types};
use nix::libc;

/// A send, and what has become of it.
#[derive(Debug)]
pub struct Sending<'b> {
    /// The socket.
    pub socket: RawFd,
    /// The bytes to be sent.
    pub bytes: &'b [u8],
    /// The number of bytes that the socket has taken, or WouldBlock: it has no room. None: the kernel was not asked.
    pub sent: Option<io::Result<usize>>,
}

/// An io_uring that can do nothing but send.
///
/// On a processor that others want, the receiver that a `send` wakes takes it as the call returns. Of many sends in one
/// call only the last one costs the caller its turn.
pub struct SendRing {
    ring: IoUring,
    is_broken: bool,
}

impl fmt::Debug for SendRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SendRing")
            .field(&self.ring.as_raw_fd())
            .finish()
    }
}

impl SendRing {
    /// The most sends in one call.
    pub const MOST: usize = 64;

    /// Makes the ring. Whoever takes the process over can do no more with it than send.
    ///
    /// # Errors
    /// The kernel's: it has no io_uring, or refuses it (`kernel.io_uring_disabled`, a filter of system calls).
    pub fn new() -> io::Result<Self> {
        let mut builder = IoUring::builder();
        builder.setup_r_disabled();
        let ring = builder.build(Self::MOST as u32)?;
        let mut allowed = [Restriction::sqe_op(opcode::Send::CODE)];
        ring.submitter().register_restrictions(&mut allowed)?;
        ring.submitter().register_enable_rings()?;
        let is_broken = false;
        Ok(Self { ring, is_broken })
    }

    /// Sends all. None waits for room, so that each is answered at once.
    ///
    /// # Errors
    /// The ring is of no use any more, now and from now on.
    pub fn send(&mut self, sends: &mut [Sending<'_>]) -> io::Result<()> {
        for sends in sends.chunks_mut(Self::MOST) {
            if self.is_broken {
                return Err(io::Error::other("it has failed before"));
            }
            let sent = self.send_chunk(sends);
            self.is_broken = sent.is_err();
            sent?;
        }
        Ok(())
    }

    fn send_chunk(&mut self, sends: &mut [Sending<'_>]) -> io::Result<()> {
        let mut queue = self.ring.submission();
        for (number, send) in sends.iter().enumerate() {
            let bytes = u32::try_from(send.bytes.len()).map_err(io::Error::other)?;
            let entry = opcode::Send::new(types::Fd(send.socket), send.bytes.as_ptr(), bytes)
                .flags(libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)
                .build()
                .user_data(number as u64);
            // SAFETY: the bytes are borrowed until this function returns, and it does not before the kernel has answered
            // each entry that it took. Entries that it did not take are never submitted: the ring counts as broken then.
            unsafe { queue.push(&entry) }.map_err(io::Error::other)?;
        }
        drop(queue);
        let mut answered = 0;
        while answered < sends.len() {
            let submitted = self.ring.submit_and_wait(sends.len() - answered);
            answered += self.take_answers(sends);
            match submitted {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    let taken = sends.len() - self.ring.submission().len();
                    while answered < taken {
                        thread::yield_now();
                        answered += self.take_answers(sends);
                    }
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Notes what the kernel has answered. Returns how many answers there were.
    fn take_answers(&mut self, sends: &mut [Sending<'_>]) -> usize {
        let mut answers = 0;
        for answer in self.ring.completion() {
            answers += 1;
            let send = usize::try_from(answer.user_data()).ok();
            if let Some(send) = send.and_then(|number| sends.get_mut(number)) {
                let sent = usize::try_from(answer.result());
                send.sent = Some(sent.map_err(|_| io::Error::from_raw_os_error(-answer.result())));
            }
        }
        answers
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{ErrorKind, Read as _},
        os::unix::net::UnixStream,
    };

    use super::*;

    #[test]
    fn each_send_has_an_answer_of_its_own() {
        let mut ring = SendRing::new().unwrap();
        let pairs: Vec<_> = (0..2 * SendRing::MOST + 1)
            .map(|_| UnixStream::pair().unwrap())
            .collect();
        let words: Vec<_> = (0..pairs.len()).map(|n| format!("to {n}")).collect();
        for _ in 0..3 {
            let mut sends: Vec<_> = pairs
                .iter()
                .zip(&words)
                .map(|(pair, word)| send(&pair.0, word.as_bytes()))
                .collect();
            ring.send(&mut sends).unwrap();
            for ((_, to), Sending { bytes, sent, .. }) in pairs.iter().zip(&sends) {
                assert_eq!(sent.as_ref().unwrap().as_ref().unwrap(), &bytes.len());
                let mut came = vec![0; bytes.len()];
                (&*to).read_exact(&mut came).unwrap();
                assert_eq!(came, *bytes);
            }
        }
    }

    #[test]
    fn a_socket_without_room_and_one_without_a_peer_hold_nobody_up() {
        let mut ring = SendRing::new().unwrap();
        let (full, _unread) = UnixStream::pair().unwrap();
        let (lonely, peer) = UnixStream::pair().unwrap();
        drop(peer);
        let (fine, mut reader) = UnixStream::pair().unwrap();
        let much = vec![7; 1 << 20];
        let mut sends = [
            send(&full, &much),
            send(&full, b"x"),
            send(&lonely, b"x"),
            send(&fine, b"x"),
        ];
        ring.send(&mut sends).unwrap();
        let [short, none, broken, fine] = sends.map(|send| send.sent.unwrap());
        let short = short.unwrap();
        assert!(short > 0 && short < much.len(), "{short}");
        assert_eq!(none.unwrap_err().kind(), ErrorKind::WouldBlock);
        assert_eq!(broken.unwrap_err().kind(), ErrorKind::BrokenPipe);
        assert_eq!(fine.unwrap(), 1);
        reader.read_exact(&mut [0]).unwrap();
    }

    fn send<'b>(socket: &UnixStream, bytes: &'b [u8]) -> Sending<'b> {
        Sending {
            socket: socket.as_raw_fd(),
            bytes,
            sent: None,
        }
    }
}
