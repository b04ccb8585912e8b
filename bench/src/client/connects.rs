//! Nothing but `connect()`.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use socket2::{Domain, Socket, Type};

use crate::order::Answer;

/// What is dialled.
pub struct Client {
    target: SocketAddr,
}

impl Client {
    /// Dials this.
    pub fn new(target: SocketAddr) -> Self {
        Self { target }
    }

    /// Connects so many times, one after the other, and times the call alone.
    pub fn connect(&mut self, count: u32) -> anyhow::Result<Answer> {
        let mut answer = Answer::empty()?;
        let begin = Instant::now();
        for _ in 0..count {
            let socket = Socket::new(Domain::for_address(self.target), Type::STREAM, None)?;
            // Closed with RST: thousands of sockets in TIME_WAIT would use up the ports.
            socket.set_linger(Some(Duration::ZERO))?;
            let target = self.target.into();
            let start = Instant::now();
            let connected = socket.connect(&target);
            let took = start.elapsed();
            match connected {
                Ok(()) => answer.latencies.record(took.as_nanos()),
                Err(error) => answer.fail(1, Some(error.to_string())),
            }
        }
        answer.seconds = begin.elapsed().as_secs_f64();
        Ok(answer)
    }
}
