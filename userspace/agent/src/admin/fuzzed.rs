//! Any bytes as questions to the admin interface.

use std::{sync::LazyLock, time::Duration};

use axum::http::{HeaderMap, HeaderValue, Uri, header};
use policy::{Policy, Session};

use super::{
    capture,
    explain::{explanation, newcomer},
    names::{Came, Names},
    tail,
};
use crate::config::Config;

static POLICY: LazyLock<Option<Policy>> = LazyLock::new(|| {
    let text = "[[rule]]\nname = \"a\"\naction = \"observe\"\nto = [\"10.0.0.0/8:9042\"]\n\
                [[rule]]\nname = \"b\"\naction = \"bypass\"\nto = [\":9042\"]\nuid = [1000]\n";
    let config = Config::parse("a.toml".as_ref(), text);
    config.map(|config| config.policy).ok()
});

/// Queries, and the name by which is asked: they are understood, or refused.
pub fn admin(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    if let Ok(wanted) = tail::wanted(text) {
        assert!(wanted.slower_than < Duration::from_secs(u64::MAX / 2));
    }
    if let Ok(wanted) = capture::wanted(text) {
        assert!(!wanted.time.is_zero() && wanted.time <= capture::MAX_CAPTURE_TIME);
    }
    if let Ok(candidate) = newcomer(text) {
        let policy = POLICY.as_ref();
        let rules = policy.map(|policy| explanation(policy, &candidate, &Session::default()));
        // The two, and the default.
        assert_eq!(rules.map(|rules| rules.len()), Some(3));
    }
    let names = |came| Names::new(&["db1.example.org".to_owned()], came);
    let uri = text.parse().unwrap_or(Uri::from_static("/flows"));
    let mut headers = HeaderMap::new();
    if let Ok(host) = HeaderValue::from_bytes(data) {
        headers.insert(header::HOST, host);
    }
    if names(Came::ByTcp).are_asked(&uri, &headers) {
        assert!(names(Came::BySocket).are_asked(&uri, &headers));
    }
}
