use std::time::Duration;

use super::*;

fn file(name: &str, text: &str) -> Fragment {
    Fragment {
        name: name.to_owned(),
        text: text.to_owned(),
    }
}

#[test]
fn fragments_are_bounded_and_in_order() {
    let many = |n: usize| (0..n).map(|n| file(&format!("{n}.toml"), "")).collect();
    assert!(Fragments::new(1, many(MAX_FRAGMENTS)).is_ok());
    assert_eq!(
        Fragments::new(1, many(MAX_FRAGMENTS + 1)),
        Err(Unusable::TooMany)
    );
    let long = |bytes: usize| vec![file("a.toml", &"#".repeat(bytes))];
    assert!(Fragments::new(1, long(MAX_FRAGMENT_BYTES)).is_ok());
    assert_eq!(
        Fragments::new(1, long(MAX_FRAGMENT_BYTES + 1)),
        Err(Unusable::TooLong)
    );
    for bad in [
        "",
        ".toml",
        "..toml",
        "a",
        "a/b.toml",
        "ä.toml",
        &format!("{}.toml", "a".repeat(59)),
    ] {
        let refused = Fragments::new(1, vec![file(bad, "")]);
        assert!(
            matches!(refused, Err(Unusable::Name(_))),
            "{bad:?}: {refused:?}"
        );
    }
    let sorted = Fragments::new(1, vec![file("b.toml", "x"), file("a.toml", "y")]).unwrap();
    assert_eq!(sorted.files[0].name, "a.toml");
    assert_eq!(sorted.text("b.toml"), Some("x"));
}

#[test]
fn a_digest_is_that_of_names_and_texts_and_of_nothing_else() {
    let of = |revision, files: &[(&str, &str)]| {
        let files = files.iter().map(|(name, text)| file(name, text));
        Fragments::new(revision, files.collect()).unwrap().digest()
    };
    let digest = of(1, &[("a.toml", "x"), ("b.toml", "y")]);
    assert_eq!(digest, of(2, &[("b.toml", "y"), ("a.toml", "x")]));
    for other in [
        of(1, &[("a.toml", "x")]),
        of(1, &[("a.toml", "y"), ("b.toml", "x")]),
        of(1, &[("a.toml", "xb.tomly")]),
        of(1, &[]),
    ] {
        assert_ne!(digest, other);
    }
}

#[test]
fn a_status_of_an_agent_that_tells_no_version_is_read() {
    let text = r#"{"host":"h","agent":"0.1.0","revision":7,"digest":"d","result":"applied","in_force":"d"}"#;
    let status: Status = serde_json::from_str(text).unwrap();
    assert_eq!((status.version, status.in_force_version), (None, None));
    assert!(status.has("d"));
    assert_eq!(serde_json::to_string(&status).unwrap(), text);
}

#[test]
fn members_are_tried_at_once_and_then_less_and_less_often() {
    let pace = Pace::default();
    for failures in 0..3 {
        assert_eq!(pace.wait(failures, 3), Duration::ZERO);
    }
    let mut before = Duration::ZERO;
    for rounds in 1..40 {
        let longest = pace.shortest_wait * (1 << (rounds - 1).min(10));
        let longest = longest.min(pace.longest_wait);
        // Where one is back, nobody waits because another one is not.
        for failures in [rounds * 3 + 1, rounds * 3 + 2] {
            assert_eq!(pace.wait(failures, 3), Duration::ZERO);
        }
        let wait = pace.wait(rounds * 3, 3);
        assert!(wait <= longest && wait >= longest / 2, "{rounds}: {wait:?}");
        before = before.max(wait);
    }
    assert!(before <= pace.longest_wait);
}
