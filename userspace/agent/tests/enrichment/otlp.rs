//! `[otlp]`: one collector gets spans, metrics, and the records of `audit` and `slowlog`; one that is not there, hangs or
//! refuses costs nobody but it.

use std::{
    fs,
    io::{Read, Write},
    net::{SocketAddr, TcpListener},
    thread,
};

use opentelemetry_proto::tonic::{
    common::v1::any_value::Value,
    logs::v1::LogRecord,
    metrics::v1::{Metric, metric::Data, number_data_point},
};

use crate::{
    common::{
        eventually,
        frames::{RESPONSE, frame, query, ready, startup, void},
        operating,
        wire::{Conversation, Host, auth_response, auth_success, authenticate, host},
    },
    trace::{
        collector::{Collector, Says, listen, listen_at, text},
        with_payload,
    },
};

const SELECT: &str = "SELECT v FROM shop.orders WHERE id = 'secret'";
const FINGERPRINT: &str = "SELECT v FROM shop.orders WHERE id = ?";
const IN_A_TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// One collector, and one rule, `r`, with these steps.
fn policy(to: SocketAddr, more: &str, path: &str, steps: &str) -> String {
    format!(
        "[otlp]\nendpoint = \"http://{to}\"\n{more}\n\
         [[rule]]\nname = \"r\"\nto = [\":PORT\"]\npath = \"{path}\"\naction = \"enrich\"\nfail = \"open\"\n\
         pipeline = [{steps}]\n"
    )
}

/// A host whose agent sends to a collector that says this.
fn sending(
    more: &str,
    path: &str,
    steps: &str,
    says: Says,
    body: impl FnOnce(&Host<'_>, &Collector),
) {
    host(|host| {
        let listener = listen(host.sandbox);
        let to = listener.local_addr().unwrap();
        host.policy(&policy(to, more, path, steps));
        body(host, &Collector::start(listener, says));
    });
}

const AUDIT: &str = "{ transform = \"audit\", otlp = true, not_kinds = [\"logins\"] }";

fn begin(host: &Host<'_>) -> Conversation {
    let mut c = host.connect();
    let options = [("CQL_VERSION", "3.0.0"), ("APPLICATION_NAME", "billing")];
    c.client_sends(&startup(4, &options));
    c.server_sends(&ready(4));
    c
}

fn asks(c: &mut Conversation, text: &str) {
    c.client_sends(&query(4, 1, text));
    c.server_sends(&void(4, 1));
}

/// When there are so many.
fn wait_for(collector: &Collector, count: usize) -> Vec<LogRecord> {
    eventually("the log records are there", || {
        collector.logs().len() >= count
    });
    let logs = collector.logs();
    assert_eq!(logs.len(), count, "{logs:#?}");
    logs
}

fn counted(host: &Host<'_>, result: &str) -> u64 {
    host.metric("otlp_log_records", &format!("result=\"{result}\""))
}

fn failures(host: &Host<'_>, signal: &str, why: &str) -> u64 {
    let labels = format!("signal=\"{signal}\",why=\"{why}\"");
    host.metric("otlp_exports_failed", &labels)
}

/// Checks attributes of a log record; `-` says that there is none.
fn says(log: &LogRecord, expected: &[(&str, &str)]) {
    for (key, value) in expected {
        let found = text(&log.attributes, key);
        assert_eq!(found.as_deref().unwrap_or("-"), *value, "{key} of {log:#?}");
    }
}

fn body(log: &LogRecord) -> &str {
    match log.body.as_ref().unwrap().value.as_ref().unwrap() {
        Value::StringValue(text) => text,
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_audit_and_a_slow_log_are_log_records() {
    for path in ["inline", "tap"] {
        let slow = ", { transform = \"slowlog\", over = \"0ms\", otlp = true }";
        let steps = format!("{AUDIT}{slow}");
        sending(
            "service = \"shop\"",
            path,
            &steps,
            Says::Thanks,
            |host, collector| {
                let mut c = host.connect();
                c.client_sends(&startup(4, &[("DRIVER_NAME", "d")]));
                c.server_sends(&authenticate(4));
                c.client_sends(&auth_response(4, 1, b"\0alice\0pw"));
                c.server_sends(&auth_success(4, 1));
                let traced = [("traceparent", IN_A_TRACE)];
                c.client_sends(&with_payload(&traced, query(4, 1, SELECT)));
                let error = [&0x1200_i32.to_be_bytes()[..], &[0, 1, b'x']].concat();
                c.server_sends(&frame(RESPONSE | 4, 1, 0x00, &error));
                let client = c.client.local_addr().unwrap();
                let flow = host.flow(&c);
                c.client_sends(&query(4, 2, SELECT));
                c.ends();
                let logs = wait_for(collector, 3);
                for log in &logs {
                    assert_eq!(body(log), "SELECT orders");
                    assert!(!format!("{log:?}").contains("secret"), "{log:#?}");
                    assert!(log.time_unix_nano > 0 && log.severity_text == "WARN");
                    says(
                        log,
                        &[
                            ("db.system.name", "cassandra"),
                            ("db.operation.name", "SELECT"),
                            ("db.collection.name", "orders"),
                            ("db.namespace", "shop"),
                            ("db.query.text", FINGERPRINT),
                            ("client.address", "127.0.0.1"),
                            ("client.port", &client.port().to_string()),
                            ("user.name", "alice"),
                            ("underpass.driver", "d"),
                            ("underpass.rule", "r"),
                            ("underpass.flow", &flow["id"].to_string()),
                            ("underpass.pid", &flow["pid"].to_string()),
                            ("underpass.process", flow["process"].as_str().unwrap()),
                        ],
                    );
                }
                let of = |event: &str| -> Vec<_> {
                    let found = logs.iter().filter(|log| log.event_name == event);
                    found.cloned().collect()
                };
                let (audit, slow) = (of("underpass.audit"), of("underpass.slow_statement"));
                // A statement without an answer took no time.
                assert_eq!((audit.len(), slow.len()), (2, 1));
                for log in [&audit[0], &slow[0]] {
                    let id = 0x0AF7_6519_16CD_43DD_8448_EB21_1C80_319C_u128;
                    assert_eq!(log.trace_id, id.to_be_bytes());
                    assert_eq!(log.span_id, 0xB7AD_6B71_6920_3331_u64.to_be_bytes());
                    let failed = [
                        ("underpass.outcome", "error"),
                        ("underpass.error", "read_timeout"),
                        ("db.response.status_code", "0x1200"),
                    ];
                    says(log, &failed);
                }
                assert!(audit[1].trace_id.is_empty() && audit[1].span_id.is_empty());
                says(&audit[1], &[("underpass.outcome", "unanswered")]);
                let resource = collector.resource().attributes;
                let own = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
                for (key, value) in [
                    ("service.name", "shop"),
                    ("service.version", env!("CARGO_PKG_VERSION")),
                    ("host.name", own.trim()),
                ] {
                    assert_eq!(text(&resource, key).as_deref(), Some(value));
                }
            },
        );
    }
}

/// A log record as the page has it, of the application `web`: three attributes a line.
fn shown(log: &LogRecord) -> String {
    let process = text(&log.attributes, "underpass.process").unwrap();
    let (event, severity) = (&log.event_name, &log.severity_text);
    let keys: Vec<&str> = log.attributes.iter().map(|one| one.key.as_str()).collect();
    let of = |key: &&str| {
        let value = text(&log.attributes, key).unwrap_or_default();
        format!("  {key}={}", value.replace(&process, "web"))
    };
    let lines = keys
        .chunks(3)
        .map(|keys| keys.iter().map(of).collect::<String>());
    let lines: Vec<String> = lines.collect();
    format!("{event} {severity} {:?}\n{}", body(log), lines.join("\n"))
}

#[test]
fn what_is_refused_is_audited_with_its_reason_and_texts_only_if_asked_for() {
    let steps = "{ transform = \"audit\", otlp = true, statement = true, kinds = [\"ddl\", \"roles\"] }, \
                 { transform = \"guard\", refuse = [\"truncate\"] }";
    sending("", "inline", steps, Says::Thanks, |host, collector| {
        let mut c = begin(host);
        let refused = query(4, 7, "TRUNCATE shop.orders");
        c.client.write_all(&refused).unwrap();
        assert!(c.client.read(&mut [0; 512]).unwrap() > 0);
        c.server_gets_nothing();
        asks(&mut c, SELECT);
        asks(&mut c, "CREATE ROLE r WITH PASSWORD = 'secret'");
        c.ends();
        let logs = wait_for(collector, 2);
        says(
            &logs[0],
            &[
                ("underpass.outcome", "refused"),
                ("underpass.answered_by", "guard"),
                ("underpass.reason", "truncate"),
                ("underpass.statement", "TRUNCATE shop.orders"),
            ],
        );
        assert_eq!(logs[0].severity_text, "WARN");
        operating::holds("One collector for everything", &[shown(&logs[0])]);
        says(
            &logs[1],
            &[("underpass.outcome", "ok"), ("underpass.statement", "-")],
        );
        assert_eq!(logs[1].severity_text, "INFO");
        assert!(!format!("{logs:?}").contains("secret"), "{logs:#?}");
    });
}

/// A metric's values by their labels, and whether they are of a counter.
fn values(metrics: &[Metric], name: &str) -> Option<(bool, Vec<(String, f64)>)> {
    let metric = metrics.iter().find(|metric| metric.name == name)?;
    let (is_sum, points) = match metric.data.as_ref().unwrap() {
        Data::Sum(sum) => {
            assert_eq!((sum.aggregation_temporality, sum.is_monotonic), (2, true));
            (true, &sum.data_points)
        }
        Data::Gauge(gauge) => (false, &gauge.data_points),
        other => panic!("{other:?}"),
    };
    let values = points.iter().map(|point| {
        let labels = point.attributes.iter();
        let labels: Vec<_> = labels
            .map(|label| text(std::slice::from_ref(label), &label.key).unwrap())
            .collect();
        let Some(number_data_point::Value::AsDouble(value)) = point.value else {
            panic!("{point:?}");
        };
        (labels.join(","), value)
    });
    Some((is_sum, values.collect()))
}

#[test]
fn metrics_are_pushed_as_they_are_scraped() {
    let often = "metrics_interval = \"1s\"";
    let count = "{ transform = \"count\" }";
    sending(often, "inline", count, Says::Thanks, |host, collector| {
        let mut c = begin(host);
        asks(&mut c, SELECT);
        // The next message, whatever the one before has.
        let before = collector.metrics().len();
        eventually("metrics come", || collector.metrics().len() > before);
        let pushed = collector.metrics().pop().unwrap();
        let (is_sum, flows) = values(&pushed, "underpass_flows").unwrap();
        assert!(!is_sum && flows.iter().map(|(_, n)| n).sum::<f64>() == 1.0);
        let frames = "underpass_frames_total";
        let (is_sum, counted) = values(&pushed, frames).unwrap();
        assert!(is_sum);
        let scraped = host.agent.get("/metrics").unwrap();
        for (labels, value) in counted {
            let said = scraped
                .lines()
                .filter(|line| line.starts_with(frames))
                .filter(|line| {
                    labels
                        .split(',')
                        .all(|label| line.contains(&format!("\"{label}\"")))
                });
            let said: f64 = said
                .map(|l| l.rsplit(' ').next().unwrap().parse::<f64>().unwrap())
                .sum();
            assert_eq!(said, value, "{labels}");
        }
        // All names that are scraped are pushed, with their help.
        for line in scraped
            .lines()
            .filter_map(|line| line.strip_prefix("# HELP "))
        {
            let (name, help) = line.split_once(' ').unwrap();
            let found = pushed.iter().find(|metric| metric.name == name);
            let found = found.unwrap_or_else(|| panic!("{name} is not pushed"));
            assert_eq!(found.description, help);
        }
        let points = || host.metric("otlp_metric_points", "result=\"exported\"");
        eventually("they are counted", || points() > 0);
        c.ends();
    });
}

#[test]
fn log_records_wait_for_a_collector_that_is_not_there_and_metrics_do_not() {
    host(|host| {
        let to = listen(host.sandbox).local_addr().unwrap();
        host.policy(&policy(to, "metrics_interval = \"1s\"", "tap", AUDIT));
        let mut c = begin(host);
        asks(&mut c, SELECT);
        for what in ["log records", "metrics"] {
            let fails = format!("a collector takes no {what}");
            host.agent.wait_for_log(&fails).unwrap();
        }
        let lost = || host.metric("otlp_metric_points", "result=\"lost\"");
        eventually("metrics are lost", || lost() > 0);
        let collector = Collector::start(listen_at(host.sandbox, to), Says::Thanks);
        wait_for(&collector, 1);
        eventually("metrics come again", || !collector.metrics().is_empty());
        for what in ["log records", "metrics"] {
            let again = format!("a collector takes {what} again");
            host.agent.wait_for_log(&again).unwrap();
        }
        eventually("they are counted", || counted(host, "exported") == 1);
        assert!(failures(host, "logs", "unreachable") > 0);
        c.ends();
    });
}

#[test]
fn a_collector_that_hangs_costs_log_records_and_nothing_else() {
    const MANY: u64 = 4_000;
    host(|host| {
        // It accepts, and says nothing.
        let hangs = listen(host.sandbox);
        let to = hangs.local_addr().unwrap();
        host.policy(&policy(to, "", "inline", AUDIT));
        let mut c = begin(host);
        for _ in 0..MANY / 100 {
            let many: Vec<u8> = (0..100).flat_map(|n| query(4, n, SELECT)).collect();
            c.client_sends(&many);
            let answers: Vec<u8> = (0..100).flat_map(|n| void(4, n)).collect();
            c.server_sends(&answers);
        }
        let full = counted(host, "full");
        assert!(0 < full && full < MANY, "{full} of {MANY} were dropped");
        c.ends();
        drop(hangs);
        let collector = Collector::start(listen_at(host.sandbox, to), Says::Thanks);
        eventually("what has waited is sent", || {
            counted(host, "exported") + counted(host, "lost") == MANY - full
        });
        assert_eq!(collector.logs().len() as u64, counted(host, "exported"));
    });
}

#[test]
fn what_a_collector_does_not_want_is_counted() {
    for (to_be, expected) in [(Says::NotThatOne, [0, 1, 0]), (Says::No, [0, 0, 1])] {
        sending("", "tap", AUDIT, to_be, |host, _collector| {
            let mut c = begin(host);
            asks(&mut c, SELECT);
            let all = || ["exported", "rejected", "lost"].map(|result| counted(host, result));
            eventually("it is counted", || all() == expected);
            c.ends();
        });
    }
}

/// Answers each request on a connection with this status of HTTP, in HTTP/2 as its bytes are (RFC 9113).
fn answers_with(listener: TcpListener, status: &'static [u8; 3]) {
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            thread::spawn(move || {
                let mut preface = [0; 24];
                stream.read_exact(&mut preface)?;
                let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
                stream.write_all(&settings)?;
                loop {
                    let mut head = [0; 9];
                    stream.read_exact(&mut head)?;
                    let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
                    std::io::copy(&mut (&stream).take(length.into()), &mut std::io::sink())?;
                    let ends = head[4] & 1 == 1;
                    // DATA or HEADERS that end the request.
                    if head[3] <= 1 && ends {
                        // `:status` by its place in the static table, and a literal.
                        let block = [&[8, 3][..], status].concat();
                        let answer = [&[0, 0, 5, 1, 5], &head[5..9], &block].concat();
                        stream.write_all(&answer)?;
                    }
                }
                #[expect(unreachable_code, reason = "it says what the loop ends with")]
                std::io::Result::Ok(())
            });
        }
    });
}

#[test]
fn what_stands_before_a_collector_may_answer_in_its_place() {
    for (status, is_lost) in [(b"404", true), (b"503", false)] {
        host(|host| {
            let listener = listen(host.sandbox);
            let to = listener.local_addr().unwrap();
            answers_with(listener, status);
            host.policy(&policy(to, "", "tap", AUDIT));
            let mut c = begin(host);
            asks(&mut c, SELECT);
            let refused = || failures(host, "logs", "refused");
            match is_lost {
                true => eventually("it is given up", || counted(host, "lost") == 1),
                false => eventually("it is tried again", || refused() > 1),
            }
            assert_eq!(refused() > 1, !is_lost);
            let said = format!("it refuses: {}", str::from_utf8(status).unwrap());
            host.agent.wait_for_log(&said).unwrap();
            c.ends();
        });
    }
}

#[test]
fn a_reload_sends_elsewhere_and_ends_it() {
    host(|host| {
        let [first, second] = [(); 2].map(|()| listen(host.sandbox));
        let at = [&first, &second].map(|listener| listener.local_addr().unwrap());
        let [first, second] = [first, second].map(|l| Collector::start(l, Says::Thanks));
        let often = "metrics_interval = \"1s\"";
        host.policy(&policy(at[0], often, "tap", AUDIT));
        eventually("the first gets metrics", || !first.metrics().is_empty());
        host.policy(&policy(at[1], often, "tap", AUDIT));
        eventually("the second gets metrics", || !second.metrics().is_empty());
        let mut c = begin(host);
        asks(&mut c, SELECT);
        wait_for(&second, 1);
        assert!(first.logs().is_empty());
        let sent = first.metrics().len();
        host.policy(&policy(at[0], "metrics_interval = \"off\"", "tap", AUDIT));
        asks(&mut c, SELECT);
        // The flow keeps the steps that it began with.
        wait_for(&second, 2);
        assert_eq!(first.metrics().len(), sent);
        c.ends();
    });
}

#[test]
fn what_rules_say_of_a_collector_is_not_said_of_the_agent() {
    host(|host| {
        let listener = listen(host.sandbox);
        let to = listener.local_addr().unwrap();
        let collector = Collector::start(listener, Says::Thanks);
        // From now on its own connections are among those that its hooks see.
        let procs = host.sandbox.cgroup.path().join("cgroup.procs");
        fs::write(procs, host.agent.pid().to_string()).unwrap();
        let denied = format!("[[rule]]\nname = \"no\"\nto = [\"{to}\"]\naction = \"deny\"\n");
        host.policy(&(policy(to, "", "inline", AUDIT) + &denied));
        let mut c = begin(host);
        asks(&mut c, SELECT);
        c.ends();
        wait_for(&collector, 1);
        assert_eq!(failures(host, "logs", "unreachable"), 0);
    });
}
