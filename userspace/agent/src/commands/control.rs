//! Asks the agent through its control socket.

use std::{
    io::{Read, Write},
    time::Duration,
};

use anyhow::{Context, bail};
use serde_json::Value;

use super::{endpoint::connect, whereabouts::Control};

/// The agent waits a second for its flows.
const PATIENCE: Duration = Duration::from_secs(30);

/// Sends a request to the control socket, and returns the agent's answer.
///
/// # Errors
/// No agent answers, this is not root, or the agent refuses.
pub(super) fn ask(
    control: &Control,
    method: &str,
    path: &str,
    body: &str,
) -> anyhow::Result<Value> {
    let at = control.at.display();
    let mut stream = connect(&control.at, &control.named)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    // HTTP/1.0: the answer ends when the connection does.
    let length = body.len();
    let request = format!("{method} {path} HTTP/1.0\r\nContent-Length: {length}\r\n\r\n{body}");
    let mut answer = String::new();
    let exchanged = stream.write_all(request.as_bytes());
    exchanged
        .and_then(|()| stream.read_to_string(&mut answer))
        .with_context(|| format!("the agent at {at} does not answer: look at its log"))?;
    let parsed = parse(&answer);
    let (status, answer) = parsed.with_context(|| {
        format!("what answers at {at} is not an underpass agent: check --control")
    })?;
    if status != 200 {
        let error = answer.get("error").and_then(Value::as_str);
        bail!("{}", error.unwrap_or("the agent refuses"));
    }
    Ok(answer)
}

fn parse(answer: &str) -> Option<(u16, Value)> {
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some((status, serde_json::from_str(body).ok()?))
}
