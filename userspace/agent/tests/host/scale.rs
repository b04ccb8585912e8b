//! `docs/scale.md` is what committed measurements say: of etcd (`cargo run -p underpass-policy-source --example fleet`), of an API server
//! (`UPDATE_DOCS=1 cargo xtask kubernetes`), and of what an agent tells (`UPDATE_DOCS=1` and the test `sizes` of `enrichment`).

use std::fs;

use sandbox::measured;
use serde_json::Value;

use super::documented::matches_the_file;

/// The fleet for which figures are computed.
const FLEET: f64 = 10_000.0;

/// Connections of that fleet.
const CONNECTIONS: f64 = 1_000_000.0;

/// Rules that are read, on each of its hosts.
const RULES: f64 = 20.0;

/// Seconds between two scrapes.
const INTERVAL: f64 = 15.0;

/// The nodes for which Kubernetes is made.
const NODES: f64 = 5_000.0;

/// Requests of which a host tells in a second.
const RECORDED: f64 = 10.0;

fn read(file: &str) -> Value {
    serde_json::from_str(&fs::read_to_string(measured::file(file)).unwrap()).unwrap()
}

fn number(of: &Value, place: &str) -> f64 {
    let found = of.pointer(place).and_then(Value::as_f64);
    found.unwrap_or_else(|| panic!("no {place}: {of}"))
}

/// Returns a number with two digits that count, and with commas.
fn shown(n: f64) -> String {
    if n == 0.0 {
        return "0".to_owned();
    }
    let step = 10_f64.powi(n.abs().log10().floor() as i32 - 1);
    let rounded = (n / step).round() * step;
    if rounded < 10.0 {
        let digits = (1 - rounded.log10().floor() as i32).max(0) as usize;
        return format!("{rounded:.digits$}");
    }
    let digits = format!("{rounded:.0}");
    let places = digits.len();
    let with_commas = digits.char_indices().map(|(n, digit)| match n {
        0 => digit.to_string(),
        n if (places - n).is_multiple_of(3) => format!(",{digit}"),
        _ => digit.to_string(),
    });
    with_commas.collect()
}

fn bytes(n: f64) -> String {
    let (unit, name) = match n {
        n if n >= 1e9 => (1e9, "GB"),
        n if n >= 1e6 => (1e6, "MB"),
        n if n >= 1e3 => (1e3, "kB"),
        _ => (1.0, "B"),
    };
    format!("{} {name}", shown(n / unit))
}

/// A row: what is measured with all hosts, what is one's, and what follows for so many.
fn row(what: &str, measured: f64, hosts: f64, for_hosts: f64, said: fn(f64) -> String) -> String {
    let one = measured / hosts;
    format!(
        "| {what} | {} | {} | {} |\n",
        said(measured),
        said(one),
        said(one * for_hosts)
    )
}

fn page(etcd: &Value, cluster: &Value, sizes: &Value) -> String {
    let cores = etcd.pointer("/circumstances").and_then(Value::as_array);
    let cores = cores.and_then(|all| all.iter().find(|pair| pair[0] == "cores"));
    let cores = cores.and_then(|pair| pair[1].as_str()).unwrap();
    format!(
        "# Scale\n\n\
        For operators who plan a fleet of {fleet} hosts with {connections} connections, {each} on each: what etcd, an API server, Prometheus and collectors\n\
        see of it. Figures are measured with {measured} hosts in one process, beside a real etcd with one member or a real API server, on one machine with\n\
        {cores} processors; or computed from what was measured, as the column says. Tests write this page: CONTRIBUTING.md says how.\n\n\
        {etcd}{shared}{cluster}{told}",
        fleet = shown(FLEET),
        connections = shown(CONNECTIONS),
        each = shown(CONNECTIONS / FLEET),
        measured = shown(number(etcd, "/hosts")),
        etcd = of_etcd(etcd),
        shared = of_sharing(etcd),
        cluster = of_kubernetes(cluster),
        told = of_told(sizes),
    )
}

fn of_etcd(etcd: &Value) -> String {
    let hosts = number(etcd, "/hosts");
    let idle = |what: &str| number(etcd, &format!("/idle/{what}")) / number(etcd, "/idle/seconds");
    let pushed = |what: &str| number(etcd, &format!("/push/seen/{what}"));
    let push = format!(
        "a push of {} rules ({}): bytes sent",
        shown(number(etcd, "/push/rules")),
        bytes(number(etcd, "/push/bytes"))
    );
    let rows = [
        row(
            "at rest: bytes sent in a second",
            idle("sent_bytes"),
            hosts,
            FLEET,
            bytes,
        ),
        row(
            "at rest: bytes received in a second",
            idle("received_bytes"),
            hosts,
            FLEET,
            bytes,
        ),
        row(
            "at rest: processors",
            idle("cpu_seconds"),
            hosts,
            FLEET,
            shown,
        ),
        row(&push, pushed("sent_bytes"), hosts, FLEET, bytes),
        row(
            "a push: writes, one for each host to acknowledge",
            pushed("puts"),
            hosts,
            FLEET,
            shown,
        ),
        row(
            "a push: seconds of a processor",
            pushed("cpu_seconds"),
            hosts,
            FLEET,
            shown,
        ),
    ];
    format!(
        "## etcd: policies\n\n\
        | what | {measured} hosts, measured | a host | {fleet} hosts, computed |\n| --- | --: | --: | --: |\n{rows}\n\
        etcd had {memory} of memory with {measured} hosts. It is all members together that send: each host asks one of them. An agent asks every two seconds\n\
        whether its watch lives, and renews a lease every ten. Beside what was measured, it looks after its status every {again} minutes and up to half as many more:\n\
        {fleet} hosts do so {look_after} times in a second.\n\n",
        again = shown(policy_source::SAY_AGAIN.as_secs_f64() / 60.0),
        look_after = shown(FLEET / (1.25 * policy_source::SAY_AGAIN.as_secs_f64())),
        measured = shown(hosts),
        fleet = shown(FLEET),
        rows = rows.concat(),
        memory = bytes(number(etcd, "/memory_bytes")),
    )
}

fn of_sharing(etcd: &Value) -> String {
    let seen = |what: &str| {
        number(etcd, &format!("/sharing/seen/{what}")) / number(etcd, "/sharing/seen/seconds")
    };
    let (record, levels) = (
        number(etcd, "/sharing/record_bytes"),
        number(etcd, "/sharing/levels_bytes"),
    );
    let tenants = number(etcd, "/sharing/tenants");
    let records = limits::RECORDS_PER_SECOND as f64;
    let period = FLEET / records;
    let most_levels = levels / tenants * limits::MAX_LEVELS as f64;
    let of_a_write = |what: &str| seen(what) / seen("puts") * records;
    let line = |what: &str, measured: String, computed: String| {
        format!("| {what} | {measured} | {computed} |\n")
    };
    let rows = [
        line("writes in a second", shown(seen("puts")), shown(records)),
        line(
            "bytes received in a second",
            bytes(seen("received_bytes")),
            bytes(of_a_write("received_bytes")),
        ),
        line(
            "bytes sent in a second",
            bytes(seen("sent_bytes")),
            bytes(FLEET * levels / period + record * records),
        ),
        line(
            "processors",
            shown(seen("cpu_seconds")),
            shown(of_a_write("cpu_seconds")),
        ),
    ];
    format!(
        "## etcd: limits that hosts share\n\n\
        Each host has {of_a_host} of {tenants} tenants, and what these ask for never stays the same. A record has {record}, the levels of all tenants have {levels}.\n\n\
        | what | {measured} hosts, measured | {fleet} hosts, computed: each says its demands every {period} s |\n| --- | --: | --: |\n{rows}\n\
        Levels go to each host: with the {most} tenants that can have one they are {most_levels}, and {fleet} hosts are sent {worst} in a second. etcd keeps\n\
        what is old until it is compacted: [have it do so](fleet.md#one-limit-for-all-hosts).\n\n",
        of_a_host = number(etcd, "/sharing/tenants_of_a_host"),
        record = bytes(record),
        levels = bytes(levels),
        measured = shown(number(etcd, "/hosts")),
        fleet = shown(FLEET),
        period = shown(period),
        rows = rows.concat(),
        most = limits::MAX_LEVELS,
        most_levels = bytes(most_levels),
        worst = bytes(most_levels * FLEET / period),
    )
}

fn of_kubernetes(cluster: &Value) -> String {
    let nodes = number(cluster, "/nodes");
    let idle =
        |what: &str| number(cluster, &format!("/idle/{what}")) / number(cluster, "/idle/seconds");
    let change = |what: &str| number(cluster, &format!("/change/{what}"));
    let rows = [
        row(
            "watches of policies",
            number(cluster, "/watches"),
            nodes,
            NODES,
            shown,
        ),
        row(
            "at rest: processors, with what the API server does anyway",
            idle("cpu_seconds"),
            nodes,
            NODES,
            shown,
        ),
        row(
            "at rest: requests in a second",
            idle("requests"),
            nodes,
            NODES,
            shown,
        ),
        row(
            "a change: requests, one for each node to acknowledge",
            change("requests"),
            nodes,
            NODES,
            shown,
        ),
        row(
            "a change: events to watchers",
            change("events"),
            nodes,
            NODES,
            shown,
        ),
        row(
            "a change: bytes of them",
            change("event_bytes"),
            nodes,
            NODES,
            bytes,
        ),
        row(
            "a change: seconds of a processor",
            change("cpu_seconds") - idle("cpu_seconds") * change("seconds"),
            nodes,
            NODES,
            shown,
        ),
    ];
    format!(
        "## Kubernetes\n\n\
        A change is a policy of {rules} rules ({policy}) that becomes another one, and is counted in its status. Kubernetes is made for {most} nodes:\n\
        10,000 hosts are several clusters, of which each sees this.\n\n\
        | what | {measured} nodes, measured | a node | {most} nodes, computed |\n| --- | --: | --: | --: |\n{rows}\n\
        The API server had {memory} of memory with {measured} nodes. Beside what was measured, each node says again every {again} minutes, and up to half as many more, what it\n\
        has: {most} nodes do so {say_again} times in a second. {more}.\n\n",
        again = shown(policy_source::SAY_AGAIN.as_secs_f64() / 60.0),
        say_again = shown(NODES / (1.25 * policy_source::SAY_AGAIN.as_secs_f64())),
        rules = shown(number(cluster, "/rules")),
        policy = bytes(number(cluster, "/policy_bytes")),
        most = shown(NODES),
        measured = shown(nodes),
        rows = rows.concat(),
        memory = bytes(number(cluster, "/memory_bytes")),
        more = "[Decision 39](decisions/0039-policies-from-kubernetes.md) says what an agent asks for, and when",
    )
}

fn of_told(sizes: &Value) -> String {
    let of = |place: &str| number(sizes, place);
    let series = of("/agent/series") + RULES * of("/rule/series");
    let scrape = of("/agent/bytes") + RULES * of("/rule/bytes");
    let point = of("/push/bytes") / of("/push/points");
    let line =
        |what: &str, series: String, size: String| format!("| {what} | {series} | {size} |\n");
    let rows = [
        line(
            "an agent, with no rule that is read",
            shown(of("/agent/series")),
            bytes(of("/agent/bytes")),
        ),
        line(
            "a rule that is read, with `stats`",
            shown(of("/rule/series")),
            bytes(of("/rule/bytes")),
        ),
        line(
            "one connection more",
            shown(of("/connection/series")),
            String::new(),
        ),
        line(
            &format!(
                "{} hosts with {RULES} such rules each (computed)",
                shown(FLEET)
            ),
            shown(FLEET * series),
            bytes(FLEET * scrape),
        ),
        line(
            &format!("in a second, scraped every {INTERVAL} s (computed)"),
            shown(FLEET * series / INTERVAL),
            bytes(FLEET * scrape / INTERVAL),
        ),
    ];
    let logs = FLEET * RECORDED;
    format!(
        "## Prometheus and collectors\n\n\
        | what | series | size of a scrape |\n| --- | --: | --: |\n{rows}\n\
        This host has one table and no containers. Series do not grow with connections, and those that grow with tables, tenants or containers are\n\
        [bounded](limits.md): `stats` has up to {tables} of a keyspace, a table and a kind each, and {containers} of a container. Such a host has many times as many.\n\n\
        A [collector](operating.md#one-collector-for-everything) to which metrics are pushed gets a point for each series each `metrics_interval`. A point has {point},\n\
        an `audit` record {record}, a span {span}. When each host tells of {recorded} requests in a second, {fleet} hosts send {records} of records and {spans} of spans in a\n\
        second (computed, before compression): sample.\n\n\
        ## What has a bound\n\n\
        [Limits](limits.md) names them all. Those that a fleet meets first: {levels} tenants have a level, a limit has at\n\
        most {tenants} tenants on a host, and {objects} policies of Kubernetes are put into force.\n",
        rows = rows.concat(),
        point = bytes(point),
        record = bytes(of("/log_record/bytes")),
        span = bytes(of("/span/bytes")),
        recorded = shown(RECORDED),
        fleet = shown(FLEET),
        records = bytes(logs * of("/log_record/bytes")),
        spans = bytes(logs * of("/span/bytes")),
        levels = limits::MAX_LEVELS,
        tenants = limits::MAX_TENANTS,
        objects = policy_source::MAX_OBJECTS,
        tables = steps::statements::MAX_SERIES,
        containers = steps::stats::MAX_CONTAINER_SERIES,
    )
}

#[test]
fn the_page_about_scale_is_what_was_measured() {
    matches_the_file(
        "scale.md",
        &page(
            &read("etcd.json"),
            &read("api-server.json"),
            &read("sizes.json"),
        ),
    );
}

#[test]
fn numbers_have_two_digits_that_count() {
    let said = [0.0, 0.01234, 1.26, 126.0, 1_260.0, 9_990_000.0].map(shown);
    assert_eq!(said, ["0", "0.012", "1.3", "130", "1,300", "10,000,000"]);
    assert_eq!(bytes(1_540.0), "1.5 kB");
}
