//! `underpass names`, and names in the findings of `check` and `doctor`.

use std::process::ExitCode;

use ::names::{Book, Files, Resolver, dial_plainly, look_up_once};
use dataplane::doctor::{Finding, State};
use policy::{Filter, MAX_FOUND, Name, Policy};
use serde_json::Value;
use tokio::{runtime, time::Instant};

use crate::{config::Config, control::wanted_names};

use super::{
    flows::{print_list, shown},
    whereabouts::Admin,
};

/// Asks the agent at `admin`.
///
/// # Errors
/// Nobody answers there.
pub fn run(json: bool, admin: &Admin) -> anyhow::Result<ExitCode> {
    let headings = [
        "NAME",
        "KIND",
        "STATE",
        "ANSWERED",
        "NEXT",
        "ADDRESSES",
        "WHY",
    ];
    print_list(admin, "/names", json, &Filter::default(), &headings, row)
}

fn row(name: &Value) -> Vec<String> {
    let seconds = |key: &str, says: &str| {
        let ms = name.get(key).and_then(Value::as_u64);
        ms.map_or("-".to_owned(), |ms| {
            format!("{says}{:.0}s", ms as f64 / 1e3)
        })
    };
    let addresses = name.get("addresses").and_then(Value::as_array);
    let addresses = addresses.into_iter().flatten().filter_map(Value::as_str);
    vec![
        shown(name, "name"),
        shown(name, "kind"),
        shown(name, "state"),
        seconds("answered_ms", "before "),
        seconds("next_ms", "in "),
        addresses.collect::<Vec<_>>().join(","),
        shown(name, "error"),
    ]
}

/// The names that rules have, as they are looked up from here.
#[derive(Default)]
pub(super) struct Found {
    book: Book,
    /// Addresses for which the kernel's table has no room.
    left_out: usize,
}

/// Looks up the names that rules have, from here, and has the rules hold for what is found.
pub(super) fn find(config: &mut Config) -> anyhow::Result<Found> {
    let wanted = wanted_names(config);
    if wanted.names.is_empty() {
        return Ok(Found::default());
    }
    let runtime = runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let resolver = Resolver::new(Files::default(), dial_plainly());
    let book = runtime.block_on(look_up_once(&wanted, &resolver));
    let left_out = config.policy.find_names(|name| book.endpoints(name));
    Ok(Found { book, left_out })
}

/// Names without an address, and addresses without room, for people.
pub(super) fn doubts(found: &Found) -> Vec<String> {
    let views = found.book.views(Instant::now()).into_iter();
    let unknown = views.filter(|view| view.addresses.is_empty());
    let unknown = unknown.map(|view| {
        format!(
            "{} stands for no address, and rules do not hold for it: {}",
            view.name,
            view.error.unwrap_or_default()
        )
    });
    unknown.chain(without_room(found.left_out)).collect()
}

fn without_room(left_out: usize) -> Option<String> {
    (left_out > 0).then(|| {
        format!(
            "names stand for more addresses than there is room for ({MAX_FOUND}, or less beside many written ones): no rule holds \
             for {left_out} of them"
        )
    })
}

/// Findings of each name of a policy: the addresses that it stands for, seen from here.
pub(super) fn findings(config: &Config) -> anyhow::Result<Vec<Finding>> {
    let found = find(&mut config.clone())?;
    let without_room = without_room(found.left_out).map(|detail| Finding {
        what: "room for the addresses of names".to_owned(),
        state: State::Notice,
        detail,
    });
    let views = found.book.views(Instant::now()).into_iter();
    let findings = views.map(|view| {
        let (state, detail) = match (view.addresses.as_slice(), view.error) {
            ([], why) => (State::Notice, why.unwrap_or_default()),
            (all, Some(why)) => (State::Notice, format!("{}; {why}", all.join(", "))),
            (all, None) => (State::Ok, all.join(", ")),
        };
        Finding {
            what: format!("{} {}", view.kind, view.name),
            state,
            detail,
        }
    });
    Ok(findings.chain(without_room).collect())
}

/// The names that rules have, and what each is taken for.
pub(super) fn taken_for(policy: &Policy) -> impl Iterator<Item = String> {
    policy.rules.iter().flat_map(|rule| {
        rule.to.named().iter().map(|target| {
            let ports = match (&target.name, target.ports.as_slice()) {
                (Name::Host(_), []) => ", all ports".to_owned(),
                (_, []) => String::new(),
                (_, [port]) => format!(", port {port}"),
                (_, [first, .., last]) => format!(", ports {first}-{last}"),
            };
            let kind = match &target.name {
                Name::Host(_) => "a host (A and AAAA records)",
                Name::Service(_) => "a service (SRV records)",
                Name::Cluster(_) => "a cluster (the nodes that it tells)",
            };
            format!("rule {}: {} is {kind}{ports}", rule.name, target.name)
        })
    })
}
