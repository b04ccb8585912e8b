//! The part of gRPC that this agent speaks: one question and its answer, each a message in an
//! HTTP/2 request, behind five bytes
//! (<https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md>).

use http_body_util::Full;
use hyper::{HeaderMap, Request, body::Bytes, header::CONTENT_TYPE, http};

/// The size of the prefix: whether the message is compressed, and its length.
const FRAME_BYTES: usize = 5;

/// Makes a question to a method, which is named by its whole URI.
///
/// # Errors
/// The URI is not valid.
pub fn request(uri: &str, message: &[u8]) -> http::Result<Request<Full<Bytes>>> {
    Request::post(uri)
        .header(CONTENT_TYPE, "application/grpc")
        .header("te", "trailers")
        .body(Full::from(framed(message)))
}

fn framed(message: &[u8]) -> Vec<u8> {
    let length = (message.len() as u32).to_be_bytes();
    [&[0], &length[..], message].concat()
}

/// Returns an answer's message. None: the message is cut, or compressed unasked.
pub fn unframed(frame: &[u8]) -> Option<&[u8]> {
    let (head, body) = frame.split_at_checked(FRAME_BYTES)?;
    let [0, a, b, c, d] = *head else {
        return None;
    };
    (u32::from_be_bytes([a, b, c, d]) as usize == body.len()).then_some(body)
}

/// Returns the status at an answer's end: a code, and a text for people. None: there is no status.
/// Where there is no message, the trailers have come as headers.
pub fn status<'h>(headers: &'h HeaderMap, trailers: &'h HeaderMap) -> Option<(&'h str, &'h str)> {
    let said = |name| trailers.get(name).or_else(|| headers.get(name));
    let text = |name| said(name).and_then(|value| value.to_str().ok());
    let code = text("grpc-status")?;
    Some((code, text("grpc-message").unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_its_message() {
        let frame = framed(b"ab");
        assert_eq!(frame, [0, 0, 0, 0, 2, b'a', b'b']);
        assert_eq!(unframed(&frame), Some(&b"ab"[..]));
        for end in 0..frame.len() {
            assert_eq!(unframed(&frame[..end]), None);
        }
        assert_eq!(unframed(&[1, 0, 0, 0, 0]), None);
        assert_eq!(unframed(&[0, 0, 0, 0, 0]), Some(&[][..]));
    }
}
