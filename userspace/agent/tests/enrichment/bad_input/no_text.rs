//! Strings that are no text: they pass, and so does what is told of them.

use super::*;

/// With what is no text in place of each `~`.
fn spoiled(mut frame: Vec<u8>) -> Vec<u8> {
    for byte in frame.iter_mut().filter(|byte| **byte == b'~') {
        *byte = 0xFF;
    }
    frame
}

fn long(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u32).to_be_bytes()[..], bytes].concat()
}

/// Requests of a client of this version behind its STARTUP, none of them text.
fn asks_without_text(version: u8) -> Vec<Vec<u8>> {
    const TEXT: &str = "SELECT v~ FROM shop.orders WHERE id = 'S3CRET'";
    const LITERAL: &str = "SELECT v FROM shop.orders WHERE id = 'S3CRET~'";
    let texts = [TEXT, LITERAL].map(str::as_bytes);
    let v5 = |bytes: &'static [u8]| if version < 5 { &[][..] } else { bytes };
    let mut all = vec![frame(version, 1, 0x0F, &long(b"\0ann~\0P4SSWORD"))];
    all.extend([TEXT, LITERAL].map(|text| query(version, 1, text)));
    all.extend(texts.map(|text| frame(version, 1, 0x09, &[&long(text), v5(&[0; 4])].concat())));
    // An UNLOGGED one, at ONE.
    let behind = [&[0, 0, 0, 1, 0], v5(&[0; 3])].concat();
    let batch = |text| [&[1, 0, 1, 0][..], &long(text), &behind].concat();
    all.extend(texts.map(|text| frame(version, 1, 0x0D, &batch(text))));
    if version == 5 {
        let keyspace = [0, 1, 0, 0, 0, 0x80, 0, 5, b's', b'h', b'o', b'p', b'~'];
        let body = [&long(SELECT.as_bytes())[..], &keyspace].concat();
        all.push(frame(version, 1, QUERY, &body));
    }
    all.into_iter().map(spoiled).collect()
}

#[test]
fn what_is_no_text_passes_and_what_is_told_of_it_is() {
    for shows in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let mut steps = passive(folder.path());
        if !shows {
            steps = steps.replace(", values = true, bytes = 4096", "");
            steps = steps.replace(", statement = true", "");
        }
        let steps = steps.replace("\"debug\"", "\"debug\", per_second = 100000");
        let told = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
        on_a_host_with(&steps, |host| {
            let mut requests = 0;
            for version in [3, 4, 5] {
                let mut pair = host.pair();
                let options = [OPTIONS[0], ("APPLICATION_NAME", "billing~")];
                pair.client_sends(&spoiled(startup(version, &options)));
                pair.server_sends(&frame(RESPONSE | version, 0, 0x03, b"\0\x01x"));
                let wrap = |frame: Vec<u8>| if version < 5 { frame } else { segment(&frame) };
                for asked in asks_without_text(version) {
                    let answer = match asked[4] {
                        0x0F => frame(RESPONSE | version, 1, 0x10, &[255; 4]),
                        _ => void(version, 1),
                    };
                    pair.client_sends(&wrap(asked));
                    pair.server_sends(&wrap(answer));
                    requests += 1;
                }
                pair.ends();
                host.goes_on();
            }
            common::eventually("all is written", || {
                told("audit").lines().count() >= requests + 3 && !told("slow").is_empty()
            });
            let tables = ["/statements", "/statements/top", "/metrics"];
            let tables = tables.map(|path| host.agent.get(path).unwrap());
            assert!(!(tables.concat() + &host.agent.log()).contains("S3CRET"));
        });
        for name in ["slow", "audit", "debug"] {
            let told = told(name);
            for line in told.lines() {
                let read = serde_json::from_str::<Value>(line);
                assert!(read.is_ok_and(|line| line.is_object()), "{name}: {line}");
            }
            let hex = |text: &str| text.bytes().map(|b| format!("{b:02x}")).collect::<String>();
            let has = |text: &str| told.contains(text) || told.contains(&hex(text));
            assert!(!told.is_empty() && !has("P4SSWORD"), "{name}: {told}");
            // Whoever wants bodies has them.
            assert_eq!(has("S3CRET"), shows && name == "debug", "{name}: {told}");
        }
    }
}
