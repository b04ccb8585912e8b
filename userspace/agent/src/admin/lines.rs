//! [`Lines`]: an answer that goes on, line by line, until its last line is told or nobody reads it any longer.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    body::Body,
    http::header,
    response::{IntoResponse, Response},
};
use hyper::body::{Bytes, Frame};
use tokio::time::{self, Interval, MissedTickBehavior};

/// The pause between two signs of life: empty lines. Whoever does not read them for a minute has to leave.
const SIGN_OF_LIFE: Duration = Duration::from_secs(10);

/// The source of an answer's lines.
pub(super) trait LineSource: Send + Unpin + 'static {
    /// Appends the lines that there are, as many as are handed over together. True: the last one is among them.
    fn poll_lines(&mut self, cx: &mut Context<'_>, to: &mut String) -> bool;
}

/// The lines of one answer.
pub(super) struct Lines<S> {
    first: Option<String>,
    source: S,
    /// Whether the last line is told.
    is_over: bool,
    sign_of_life: Interval,
}

impl<S: LineSource> Lines<S> {
    /// Makes an answer of this line, and then those of the source.
    pub(super) fn answer(first: String, source: S) -> Response {
        let begin = time::Instant::now() + SIGN_OF_LIFE;
        let mut sign_of_life = time::interval_at(begin, SIGN_OF_LIFE);
        sign_of_life.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let lines = Self {
            first: Some(first + "\n"),
            source,
            is_over: false,
            sign_of_life,
        };
        (
            [(header::CONTENT_TYPE, "application/x-ndjson")],
            Body::new(lines),
        )
            .into_response()
    }
}

impl<S: LineSource> hyper::body::Body for Lines<S> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = self.get_mut();
        if this.is_over {
            return Poll::Ready(None);
        }
        let mut text = this.first.take().unwrap_or_default();
        this.is_over = this.source.poll_lines(cx, &mut text);
        if text.is_empty() && this.sign_of_life.poll_tick(cx).is_ready() {
            text.push('\n');
        }
        match text.is_empty() {
            true => Poll::Pending,
            false => Poll::Ready(Some(Ok(Frame::data(text.into())))),
        }
    }
}
