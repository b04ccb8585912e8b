//! Any bytes as requests at the control socket.

use std::time::SystemTime;

use super::{Marks, Target, Wanted, server::said};
use crate::{log::LogLevel, upgrade::fuzzed::handed_over};

/// A request is understood or refused; a mark's selector means the same wherever it is read again.
pub fn control(data: &[u8]) {
    let Ok(body) = std::str::from_utf8(data) else {
        return;
    };
    if let Ok(wanted) = said(body) {
        holds(&wanted);
    }
    if let Ok(level) = body.parse::<LogLevel>() {
        assert_eq!(level.to_string(), body);
        let filter = tracing_subscriber::EnvFilter::try_new(body);
        assert!(filter.is_ok(), "{body}");
    }
}

/// A mark that may hold can be put into force, shown, and handed over.
pub(crate) fn holds(wanted: &Wanted) {
    let text = wanted.target.to_string();
    let again = Target::parse(&text, wanted.action).map(|target| target.to_string());
    assert_eq!(again.as_ref(), Ok(&text));
    let mut marks = Marks::default();
    let Ok(mark) = marks.add(wanted) else {
        return;
    };
    let _ = marks.next_end();
    if let Some(message) = mark.view().told(SystemTime::now()) {
        handed_over(&message);
    }
}
