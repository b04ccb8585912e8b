//! A Redis in memory: the few commands that `cache` gives, one after the other.

use std::collections::HashMap;

/// A Redis.
#[derive(Default)]
pub struct Redis {
    kept: HashMap<Vec<u8>, Kept>,
}

struct Kept {
    value: Vec<u8>,
    /// When it is gone. None: never.
    until_ns: Option<u64>,
}

impl Redis {
    /// Carries commands out at this time, and returns the replies.
    pub fn answer(&mut self, now_ns: u64, commands: &[u8]) -> Vec<u8> {
        let mut replies = Vec::new();
        let mut rest = commands;
        while !rest.is_empty() {
            match words(&mut rest)[..] {
                [b"PING"] => replies.extend(b"+PONG\r\n"),
                [b"SET", key, value] => {
                    self.keep(key, value, None);
                    replies.extend(b"+OK\r\n");
                }
                [b"SET", key, value, b"PX", ttl_ms] => {
                    let ttl_ns = number(ttl_ms) as u64 * 1_000_000;
                    self.keep(key, value, Some(now_ns + ttl_ns));
                    replies.extend(b"+OK\r\n");
                }
                [b"GETRANGE", key, first, last] => {
                    let value = self.value(now_ns, key);
                    let end = value.len().min(number(last) + 1);
                    let part = value.get(number(first)..end).unwrap_or_default();
                    replies.extend(format!("${}\r\n", part.len()).into_bytes());
                    replies.extend_from_slice(part);
                    replies.extend(b"\r\n");
                }
                ref other => panic!("no command of the cache's: {other:?}"),
            }
        }
        replies
    }

    fn keep(&mut self, key: &[u8], value: &[u8], until_ns: Option<u64>) {
        let value = value.to_vec();
        self.kept.insert(key.to_vec(), Kept { value, until_ns });
    }

    fn value(&self, now_ns: u64, key: &[u8]) -> &[u8] {
        let kept = self.kept.get(key);
        let kept = kept.filter(|kept| kept.until_ns.is_none_or(|until| now_ns < until));
        kept.map_or(&[][..], |kept| &kept.value[..])
    }
}

/// Takes a command: an array of strings.
fn words<'c>(rest: &mut &'c [u8]) -> Vec<&'c [u8]> {
    let count = length(rest, b'*');
    let word = |_| {
        let length = length(rest, b'$');
        let (word, behind) = rest.split_at(length);
        *rest = behind.strip_prefix(b"\r\n").unwrap();
        word
    };
    (0..count).map(word).collect()
}

/// Takes a line with a number behind this sign.
fn length(rest: &mut &[u8], sign: u8) -> usize {
    let end = rest.windows(2).position(|two| two == b"\r\n").unwrap();
    let (line, behind) = rest.split_at(end);
    *rest = &behind[2..];
    number(line.strip_prefix(&[sign]).unwrap())
}

fn number(digits: &[u8]) -> usize {
    std::str::from_utf8(digits).unwrap().parse().unwrap()
}
