//! Results as the client gets them.

use cql_edit::protect::{Failures, Fate};

use super::database::*;
use crate::support::edit::*;

#[test]
fn a_result_is_read_by_what_was_selected() {
    for kind in KINDS {
        let vault = TestVault::new();
        let mut flow = protected(kind, &vault);
        let sealed = flow.sealed("iban", SECRET.as_bytes());
        let id = Some(&b"\0\0\0\x01"[..]);
        let (cell, plain) = (Some(&sealed[..]), Some(SECRET.as_bytes()));
        type Case<'a> = (&'a str, &'a [Spec], &'a [Value<'a>], &'a [Value<'a>]);
        let cases: [Case<'_>; 4] = [
            (
                "SELECT * FROM shop.customers",
                &CUSTOMERS,
                &[id, cell, None],
                &[id, plain, None],
            ),
            (
                "SELECT iban AS photo, iban, id FROM shop.customers",
                &[("photo", 0x0D), ("iban", 0x0D), ("id", 9)],
                &[cell, cell, id],
                &[plain, plain, id],
            ),
            // What is only called so is another's.
            (
                "SELECT iban AS x, note AS iban FROM shop.customers",
                &[("x", 0x0D), ("iban", 0x0D)],
                &[cell, cell],
                &[plain, cell],
            ),
            (
                "SELECT note AS iban, id FROM shop.customers",
                &[("iban", 0x0D), ("id", 9)],
                &[cell, id],
                &[cell, id],
            ),
        ];
        for (text, found, stored, expected) in cases {
            flow.asks(text, &[]).unwrap();
            let read = flow.reads(found, &[stored, stored]).unwrap();
            assert_eq!(
                read,
                rows_body(found, &[expected, expected]),
                "{kind:?} {text}"
            );
        }
        let text = "SELECT id, iban FROM shop.customers";
        flow.asks(text, &[]).unwrap();
        let (_, message) = flow.reads(&CUSTOMERS, &[&[id, cell, None]]).unwrap_err();
        assert!(
            message.contains("other columns than were asked for"),
            "{message}"
        );
        flow.asks(text, &[]).unwrap();
        let (_, message) = flow
            .reads(&[("id", 9), ("iban", 0x0C)], &[&[id, cell]])
            .unwrap_err();
        assert!(message.contains("neither text nor blob"), "{message}");
        // Rows that cannot be read, and what are none.
        flow.asks(text, &[]).unwrap();
        let no_metadata = [2_i32, 4, 2, 0].map(i32::to_be_bytes).concat();
        let (_, message) = flow.answered(&no_metadata).unwrap_err();
        assert!(message.contains("cannot be read"), "{message}");
        flow.asks(text, &[]).unwrap();
        let void = 1_i32.to_be_bytes();
        assert_eq!(flow.answered(&void).unwrap(), void);
    }
}

#[test]
fn what_cannot_be_decrypted_is_an_error_or_passes_as_it_is_said() {
    let kind = KINDS[3];
    let id = Some(&b"\0\0\0\x01"[..]);
    let strict = Failures {
        unencrypted_passes: false,
        keyless_passes: false,
    };
    let lenient = Failures {
        unencrypted_passes: true,
        keyless_passes: true,
    };
    for (failures, passes) in [(strict, false), (lenient, true)] {
        let vault = TestVault::new();
        let mut flow = protected_with(kind, &vault, failures);
        let sealed = flow.sealed("iban", SECRET.as_bytes());
        let text = String::from_utf8(sealed.clone()).unwrap();
        let gone = text.replace("up1.old.", "up1.gone.").into_bytes();
        let mut bent = sealed.clone();
        *bent.last_mut().unwrap() ^= 1;
        for (cell, fate, may_pass) in [
            (
                &b"a plain one"[..],
                if passes {
                    Fate::Unencrypted
                } else {
                    Fate::UnencryptedRefused
                },
                true,
            ),
            (&gone, Fate::UnknownKey, true),
            (&bent, Fate::Tampered, false),
        ] {
            flow.asks("SELECT * FROM shop.customers", &[]).unwrap();
            let row = [id, Some(cell), None];
            let read = flow.reads(&CUSTOMERS, &[&row]);
            match passes && may_pass {
                true => assert_eq!(read.unwrap(), rows_body(&CUSTOMERS, &[&row])),
                false => {
                    let (code, message) = read.unwrap_err();
                    assert_eq!(code, 0x2200);
                    assert!(message.contains("shop.customers.iban"), "{message}");
                    let secret = String::from_utf8_lossy(cell).into_owned();
                    assert!(!message.contains(&secret), "{message}");
                }
            }
            assert_eq!(vault.counted(fate), 1, "{fate}");
        }
        assert_eq!(vault.missed(), ["gone"]);
        // Without keys nothing is written, whatever the setting.
        vault.lose_keys();
        flow.asks("SELECT * FROM shop.customers", &[]).unwrap();
        let row = [id, Some(&sealed[..]), None];
        let read = flow.reads(&CUSTOMERS, &[&row]);
        assert_eq!(read.is_ok(), passes);
        let text = "INSERT INTO shop.customers (id, iban) VALUES (1, 'secret')";
        let (code, message) = flow.asks(text, &[]).unwrap_err();
        assert_eq!(code, 0x1001);
        assert!(message.contains("no keys"), "{message}");
    }
}

#[test]
fn a_result_that_is_too_large_to_be_seen_is_withheld() {
    for kind in [KINDS[0], KINDS[3]] {
        let vault = TestVault::new();
        let mut flow = protected(kind, &vault);
        flow.asks("SELECT iban FROM shop.customers", &[]).unwrap();
        let large = vec![b'x'; cql_edit::MAX_SEEN_BYTES + 1];
        let body = rows_body(&[("iban", 0x0D)], &[&[Some(&large)]]);
        let (code, message) = flow.answered(&body).unwrap_err();
        assert_eq!(code, 0x2200);
        assert!(message.contains("smaller pages"), "{message}");
        // The flow goes on.
        flow.asks("SELECT iban FROM shop.customers", &[]).unwrap();
        let void = 1_i32.to_be_bytes();
        assert_eq!(flow.answered(&void).unwrap(), void);
    }
}
