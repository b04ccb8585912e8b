//! The encoded parts of spans and log records that stay the same: the flow's identity, and the statement. Names are
//! those of OpenTelemetry's semantic conventions for database clients; attributes that have no name
//! there are `underpass.…`.

use cql::{Fingerprint, Statement, StatementKind};
use prost::Message as _;

use super::{
    messages::{AnyValue, KeyValue, LogRecord, Span},
    record::Kind,
};
use crate::{Whose, containers::Contained};

/// The value of `db.system.name`, and the name of a span of which nothing is known.
const SYSTEM: &str = "cassandra";

/// Encodes attributes, and the name of a span, which is the body of a log record.
pub(super) fn encoded(kind: Kind, name: Option<&str>, attributes: Vec<KeyValue>) -> Vec<u8> {
    match kind {
        Kind::Span => Span {
            attributes,
            name: name.unwrap_or_default().to_owned(),
            ..Span::default()
        }
        .encode_to_vec(),
        Kind::Audit | Kind::Slow => LogRecord {
            attributes,
            body: name.map(AnyValue::text),
            ..LogRecord::default()
        }
        .encode_to_vec(),
    }
}

/// Encodes the flow's identity. `tried`: the user of a log-in that failed.
pub(super) fn who(kind: Kind, whose: &Whose, tried: Option<&str>) -> Vec<u8> {
    let flow = &whose.flow;
    let mut attributes = vec![KeyValue::text("db.system.name", SYSTEM)];
    let addresses = [
        ("server.address", "server.port", flow.orig_dst.socket_addr()),
        (
            "network.peer.address",
            "network.peer.port",
            whose.coordinator(),
        ),
        ("client.address", "client.port", flow.client.socket_addr()),
    ];
    for (address, port, of) in addresses {
        attributes.push(KeyValue::text(address, &of.ip().to_string()));
        attributes.push(KeyValue::number(port, of.port().into()));
    }
    attributes.push(KeyValue::text("underpass.rule", whose.rule.as_str()));
    let number = flow.id.number().try_into().unwrap_or(i64::MAX);
    attributes.push(KeyValue::number("underpass.flow", number));
    let known = [
        ("underpass.application", whose.application()),
        ("underpass.process", whose.process()),
    ];
    for (key, known) in known {
        attributes.extend(known.map(|value| KeyValue::text(key, value)));
    }
    if let Some(of) = whose.container() {
        attributes.extend(container(of));
    }
    if kind != Kind::Span {
        attributes.extend(client(whose, tried));
    }
    encoded(kind, None, attributes)
}

/// Describes the container and its pod, by the names of the semantic conventions.
fn container(of: &Contained) -> Vec<KeyValue> {
    let (name, labels) = match of.pod {
        Some(_) => ("k8s.container.name", "k8s.pod.label"),
        None => ("container.name", "container.label"),
    };
    let owner = of.owner.as_deref().and_then(|owner| {
        let (kind, name) = owner.split_once('/')?;
        let key = match kind {
            "deployment" | "statefulset" | "daemonset" | "replicaset" | "job" | "cronjob" => {
                format!("k8s.{kind}.name")
            }
            _ => return Some(KeyValue::text("underpass.owner", owner)),
        };
        Some(KeyValue::text(&key, name))
    });
    let known = [
        (name, &of.container),
        ("k8s.pod.name", &of.pod),
        ("k8s.namespace.name", &of.namespace),
    ];
    let known = known.into_iter();
    let known = known.filter_map(|(key, value)| Some(KeyValue::text(key, value.as_deref()?)));
    let labels = of
        .labels
        .iter()
        .map(|(key, value)| KeyValue::text(&format!("{labels}.{key}"), value));
    known.chain(owner).chain(labels).collect()
}

/// Describes the client as an auditor wants to know it, beyond what spans have.
fn client(whose: &Whose, tried: Option<&str>) -> Vec<KeyValue> {
    let user = whose.user();
    let [driver, version] = whose.driver();
    let tls = whose.flow.tls().and_then(|tls| tls.client);
    let certificate = tls.as_ref().and_then(|tls| tls.peer.first());
    let known = [
        ("user.name", tried.or(user.as_deref())),
        ("underpass.cgroup", whose.cgroup.as_deref()),
        ("underpass.driver", driver),
        ("underpass.driver_version", version),
        ("underpass.tls", tls.as_ref().map(|tls| tls.version)),
        ("underpass.certificate", certificate.map(String::as_str)),
    ];
    let known = known.into_iter();
    let mut known: Vec<_> = known
        .filter_map(|(key, value)| Some(KeyValue::text(key, value?)))
        .collect();
    let process = &whose.flow.process;
    if !process.is_elsewhere() {
        known.push(KeyValue::number("underpass.pid", process.pid.into()));
        known.push(KeyValue::number("underpass.uid", process.uid.into()));
    }
    known
}

/// Encodes the statement: the span's name, and everything known of the statement, without values.
pub(super) fn what(
    kind: Kind,
    statement: &Statement,
    fingerprint: Option<&Fingerprint>,
) -> Vec<u8> {
    let operation = operation(statement.kind);
    // Of a batch only the first table is known.
    let is_batch = statement.kind == StatementKind::Batch;
    let table = statement.table.as_deref().filter(|_| !is_batch);
    let keyspace = statement.keyspace.as_deref();
    let target = table.or(keyspace);
    let summary = operation
        .as_ref()
        .map(|operation| match target {
            Some(target) => format!("{operation} {target}"),
            None => operation.clone(),
        })
        .or_else(|| target.map(str::to_owned));
    let text = fingerprint.filter(|known| known.is_known());
    let attributes = [
        ("db.operation.name", operation.as_deref()),
        ("db.collection.name", table),
        ("db.namespace", keyspace),
        ("db.query.summary", summary.as_deref()),
        ("db.query.text", text.map(Fingerprint::text)),
    ];
    let known = attributes.into_iter();
    let attributes = known.filter_map(|(key, value)| Some(KeyValue::text(key, value?)));
    let name = summary.as_deref().unwrap_or(SYSTEM);
    encoded(kind, Some(name), attributes.collect())
}

/// Returns the operation as CQL spells it. None for a statement that was not read, or not
/// understood.
fn operation(kind: StatementKind) -> Option<String> {
    use StatementKind as Kind;
    let is_known = !matches!(kind, Kind::Query | Kind::Execute | Kind::Unknown);
    is_known.then(|| kind.as_str().to_ascii_uppercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(kind: StatementKind, keyspace: Option<&str>, table: Option<&str>) -> String {
        let statement = Statement {
            kind,
            keyspace: keyspace.map(Into::into),
            table: table.map(Into::into),
        };
        Span::decode(&*what(Kind::Span, &statement, None))
            .unwrap()
            .name
    }

    #[test]
    fn a_span_is_called_what_is_known() {
        use StatementKind as Kind;
        for (kind, keyspace, table, expected) in [
            (Kind::Select, Some("shop"), Some("orders"), "SELECT orders"),
            (
                Kind::Prepare,
                Some("shop"),
                Some("orders"),
                "PREPARE orders",
            ),
            (Kind::Batch, Some("shop"), Some("orders"), "BATCH shop"),
            (Kind::Use, Some("shop"), None, "USE shop"),
            (Kind::List, None, None, "LIST"),
            (Kind::Unknown, Some("shop"), None, "shop"),
            (Kind::Execute, None, None, "cassandra"),
        ] {
            assert_eq!(name(kind, keyspace, table), expected);
        }
    }

    #[test]
    fn a_pod_has_the_names_of_the_conventions() {
        let told = |owner: &str, pod: Option<&str>| {
            let of = Contained {
                container: Some("main".to_owned()),
                pod: pod.map(str::to_owned),
                namespace: pod.map(|_| "shop".to_owned()),
                owner: pod.map(|_| owner.to_owned()),
                labels: [("app".to_owned(), "web".to_owned())].into(),
            };
            encoded(Kind::Span, None, container(&of))
        };
        let expected = |all: &[(&str, &str)]| {
            let all = all.iter().map(|(key, value)| KeyValue::text(key, value));
            encoded(Kind::Span, None, all.collect())
        };
        let begin = [
            ("k8s.container.name", "main"),
            ("k8s.pod.name", "web-1"),
            ("k8s.namespace.name", "shop"),
        ];
        for (owner, key, value) in [
            ("deployment/web", "k8s.deployment.name", "web"),
            ("cronjob/night/x", "k8s.cronjob.name", "night/x"),
            ("rollout/web", "underpass.owner", "rollout/web"),
        ] {
            let all = [&begin[..], &[(key, value), ("k8s.pod.label.app", "web")]].concat();
            assert_eq!(told(owner, Some("web-1")), expected(&all), "{owner}");
        }
        let alone = [("container.name", "main"), ("container.label.app", "web")];
        assert_eq!(told("", None), expected(&alone));
    }
}
