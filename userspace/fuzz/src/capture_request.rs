//! Any bytes as the body of a request, and any text as a statement.
//!
//! For any input: a request's parts are no more than its bytes; a masked text has the tokens of its own, and nothing of
//! its values but their lengths.

use capture::{Request, has_literals, masked};
use cql::{
    WholeRequest,
    text::{Token, Tokens, kept},
    wire::{HEADER_BYTES, Header},
};

/// A request that is captured, and its text with values masked.
pub fn request(data: &[u8]) {
    let Some(([version, opcode, flags], body)) = data.split_first_chunk() else {
        return;
    };
    let mut raw = [0; HEADER_BYTES];
    raw[..5].copy_from_slice(&[3 + version % 3, *flags, 0, 1, *opcode]);
    raw[5..].copy_from_slice(&(body.len() as u32).to_be_bytes());
    if let Some(header) = Header::read(raw) {
        let whole = WholeRequest {
            header,
            body: body.into(),
        };
        if let Some(request) = Request::read(&whole) {
            let values = request.statements.iter().map(|(_, values)| values.len());
            assert!(request.statements.len() + values.sum::<usize>() <= body.len());
        }
    }
    if let Ok(text) = std::str::from_utf8(body) {
        statement(text);
    }
}

fn statement(text: &str) {
    let Some(hidden) = masked(text) else {
        return;
    };
    assert_eq!(masked(&hidden).as_deref(), Some(&*hidden));
    assert_eq!(has_literals(&hidden), has_literals(text));
    assert_eq!(shape(&hidden), shape(text), "{text:?} {hidden:?}");
}

/// A text's tokens, without what its values say.
fn shape(text: &str) -> Vec<String> {
    let kept = kept(text.as_bytes()).unwrap_or_default();
    let mut kept = kept.into_iter().peekable();
    let mut tokens = Tokens::new(text.as_bytes());
    let mut shape = Vec::new();
    for _ in 0..=text.len() {
        let (token, at) = tokens.next_within(text.len());
        let is_kept = kept.next_if_eq(&(text.len() - at.end)).is_some();
        match token {
            Token::End => break,
            Token::Integer(_) if !is_kept => shape.push("integer".to_owned()),
            Token::Word(_) if !is_kept => shape.push("word".to_owned()),
            Token::Quoted(_) if !is_kept => shape.push("quoted".to_owned()),
            token => shape.push(format!("{token:?}")),
        }
    }
    shape
}
