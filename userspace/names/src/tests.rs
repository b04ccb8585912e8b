//! The resolver and the follower against a name server that answers as it is told.

use std::{net::IpAddr, sync::Arc, time::Duration};

use policy::{Domain, Endpoint, Name};
use prometheus::Registry;
use sandbox::dns::{NameServer, Told};
use tokio::{
    sync::watch,
    time::{Instant, timeout},
};

use crate::{
    Failure, Files, Follower, NameMetrics, Resolver, State, Wanted, dial_plainly,
    resolver::LookedUp,
};

/// Everything that is waited for comes within this.
const PATIENCE: Duration = Duration::from_secs(20);

struct Host {
    server: NameServer,
    folder: tempfile::TempDir,
}

impl Host {
    fn new() -> Self {
        let host = Self {
            server: NameServer::start(([127, 0, 0, 1], 0).into()).unwrap(),
            folder: tempfile::tempdir().unwrap(),
        };
        host.write(
            "resolv.conf",
            "nameserver 127.0.0.1\noptions timeout:1 attempts:1\n",
        );
        host
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.folder.path().join(name), text).unwrap();
    }

    fn resolver(&self) -> Resolver {
        let files = Files {
            resolv_conf: self.folder.path().join("resolv.conf"),
            hosts: self.folder.path().join("hosts"),
            port: self.server.at().port(),
        };
        Resolver::new(files, dial_plainly())
    }

    async fn host(&self, name: &str) -> Result<LookedUp, Failure> {
        self.resolver().host(&Domain::parse(name).unwrap()).await
    }

    async fn found(&self, name: &str) -> Vec<String> {
        shown(&self.host(name).await.unwrap())
    }

    async fn failed(&self, name: &str) -> &'static str {
        self.host(name).await.unwrap_err().label()
    }
}

fn ip(last: u8) -> IpAddr {
    [10, 1, 0, last].into()
}

fn shown(found: &LookedUp) -> Vec<String> {
    let one = |at: &Endpoint| match at.port {
        Some(port) => format!("{}:{port}", at.ip),
        None => at.ip.to_string(),
    };
    found.endpoints.iter().map(one).collect()
}

#[tokio::test]
async fn a_host_has_the_addresses_of_both_families_through_aliases() {
    let host = Host::new();
    let v6 = "fd00::1".parse().unwrap();
    host.server
        .tell("n.shop", Told::Addresses(vec![ip(2), v6, ip(1)]), 30);
    host.server.tell("db.shop", Told::Alias("n.shop".into()), 7);
    assert_eq!(
        host.found("DB.shop").await,
        ["10.1.0.1", "10.1.0.2", "fd00::1"]
    );
    assert_eq!(
        host.host("db.shop").await.unwrap().ttl,
        Duration::from_secs(7)
    );
    host.server
        .tell("dangling.shop", Told::Alias("gone.shop".into()), 7);
    assert_eq!(host.failed("dangling.shop").await, "no_such_name");
}

#[tokio::test]
async fn an_answer_that_does_not_fit_comes_over_tcp() {
    let host = Host::new();
    let all: Vec<IpAddr> = (0..200).map(ip).collect();
    host.server.tell("big.shop", Told::Addresses(all), 30);
    assert_eq!(host.found("big.shop").await.len(), 200);
    assert_eq!(host.server.asked_by_tcp(), 1);
}

#[tokio::test]
async fn each_failure_has_its_name() {
    let host = Host::new();
    host.server.tell("fails.shop", Told::Fails, 0);
    host.server.tell("silent.shop", Told::Silence, 0);
    host.server
        .tell("empty.shop", Told::Addresses(Vec::new()), 0);
    let here = [
        "127.0.0.1",
        "0.0.0.0",
        "::1",
        "224.0.0.1",
        "255.255.255.255",
        "::ffff:127.0.0.1",
    ];
    let here = here.map(|ip| ip.parse().unwrap()).to_vec();
    host.server.tell("here.shop", Told::Addresses(here), 0);
    for (name, why) in [
        ("fails.shop", "server_failed"),
        ("silent.shop", "late"),
        ("empty.shop", "no_address"),
        ("here.shop", "unusable"),
        ("gone.shop", "no_such_name"),
    ] {
        assert_eq!(host.failed(name).await, why, "{name}");
    }
    host.write("resolv.conf", "# nothing\n");
    assert_eq!(host.failed("db.shop").await, "no_server");
}

#[tokio::test]
async fn the_next_server_is_asked_where_one_fails() {
    let host = Host::new();
    // Nobody listens there: the kernel says so.
    host.write(
        "resolv.conf",
        "nameserver 127.77.0.1\nnameserver 127.0.0.1\n",
    );
    host.server.tell("db.shop", Told::Addresses(vec![ip(1)]), 0);
    assert_eq!(host.found("db.shop").await, ["10.1.0.1"]);
    host.write("resolv.conf", "nameserver 127.77.0.1\n");
    assert_eq!(host.failed("db.shop").await, "unreachable");
}

#[tokio::test]
async fn a_forged_answer_is_passed_over() {
    let host = Host::new();
    host.server.tell("db.shop", Told::Forged(vec![ip(1)]), 0);
    assert_eq!(host.found("db.shop").await, ["10.1.0.1"]);
}

#[tokio::test]
async fn domains_are_searched_and_a_failure_on_the_way_ends_the_search() {
    let host = Host::new();
    let options =
        "nameserver 127.0.0.1\noptions timeout:1 attempts:1 ndots:2\nsearch a.example b.example\n";
    host.write("resolv.conf", options);
    host.server
        .tell("db.shop.b.example", Told::Addresses(vec![ip(1)]), 0);
    host.server.tell("db.shop", Told::Addresses(vec![ip(2)]), 0);
    assert_eq!(host.found("db.shop").await, ["10.1.0.1"]);
    assert_eq!(host.found("db.shop.").await, ["10.1.0.2"]);
    host.server.tell("db.shop.a.example", Told::Fails, 0);
    assert_eq!(host.failed("db.shop").await, "server_failed");
}

#[tokio::test]
async fn what_the_file_of_hosts_has_is_not_asked_for() {
    let host = Host::new();
    host.write("hosts", "127.0.0.1 db.shop\n");
    assert_eq!(host.found("db.shop").await, ["127.0.0.1"]);
    assert_eq!(host.server.asked("db.shop"), 0);
}

#[tokio::test]
async fn a_service_has_the_addresses_and_ports_of_its_hosts() {
    let host = Host::new();
    let services = [
        ("n1.shop", 9042),
        ("n2.shop", 9142),
        ("gone.shop", 9042),
        ("n1.shop", 0),
    ];
    let services = services
        .map(|(name, port)| (name.to_owned(), port))
        .to_vec();
    host.server
        .tell("_cql._tcp.shop", Told::Services(services), 30);
    host.server
        .tell("n1.shop", Told::Addresses(vec![ip(1)]), 30);
    host.server.tell("n2.shop", Told::Addresses(vec![ip(2)]), 9);
    let domain = Domain::parse("_cql._tcp.shop").unwrap();
    let service = async || {
        let until = Instant::now() + PATIENCE;
        host.resolver().service(&domain, until).await.unwrap()
    };
    let found = service().await;
    assert_eq!(shown(&found), ["10.1.0.1:9042", "10.1.0.2:9142"]);
    assert_eq!(found.ttl, Duration::from_secs(9));
    assert!(found.missing.is_none());
    host.server.tell("n2.shop", Told::Fails, 0);
    let found = service().await;
    let missing = found.missing.unwrap();
    assert_eq!(missing.why.label(), "server_failed");
    let [n1, n2] = ["n1.shop", "n2.shop"].map(Arc::<str>::from);
    let at = Endpoint::host(ip(2));
    assert!(missing.may_have(&at, Some(&n2)) && !missing.may_have(&at, Some(&n1)));
    let many = (1..100).map(|port| ("n1.shop".to_owned(), port)).collect();
    host.server.tell("_cql._tcp.shop", Told::Services(many), 30);
    let found = service().await;
    assert_eq!((found.endpoints.len(), found.refused), (16, 83));
    let many = (0..70).map(|n| (format!("h{n}.shop"), 9042)).collect();
    host.server.tell("_cql._tcp.shop", Told::Services(many), 30);
    for n in 0..70 {
        host.server
            .tell(&format!("h{n}.shop"), Told::Addresses(vec![ip(n)]), 30);
    }
    let found = service().await;
    assert_eq!(
        (found.endpoints.len(), found.refused, found.too_many),
        (64, 0, 6)
    );
}

#[tokio::test]
async fn a_host_of_a_service_that_nobody_answers_for_is_not_in_the_way() {
    let host = Host::new();
    let mut services: Vec<_> = (0..6).map(|n| (format!("a{n}.shop"), 9042)).collect();
    for (name, _) in &services {
        host.server.tell(name, Told::Silence, 0);
    }
    services.push(("n1.shop".to_owned(), 9042));
    host.server
        .tell("_cql._tcp.shop", Told::Services(services), 30);
    host.server
        .tell("n1.shop", Told::Addresses(vec![ip(1)]), 30);
    let domain = Domain::parse("_cql._tcp.shop").unwrap();
    // Less than the wait for one server.
    let until = Instant::now() + Duration::from_millis(700);
    let found = host.resolver().service(&domain, until).await.unwrap();
    assert_eq!(shown(&found), ["10.1.0.1:9042"]);
    assert_eq!(found.missing.unwrap().why.label(), "late");
}

#[tokio::test]
async fn a_server_that_is_away_is_waited_for_once() {
    let host = Host::new();
    // Nobody answers there.
    let away = std::net::UdpSocket::bind(("127.77.0.2", host.server.at().port())).unwrap();
    host.write(
        "resolv.conf",
        "nameserver 127.77.0.2\nnameserver 127.0.0.1\noptions timeout:2 attempts:1\n",
    );
    host.server.tell("db.shop", Told::Addresses(vec![ip(1)]), 0);
    let resolver = host.resolver().at_start();
    let domain = Domain::parse("db.shop").unwrap();
    let looked_up = async || {
        let began = Instant::now();
        assert_eq!(resolver.host(&domain).await.unwrap().endpoints.len(), 1);
        began.elapsed()
    };
    // At the start for less long than the file says.
    let second = Duration::from_secs(1);
    let first = looked_up().await;
    assert!(first >= second && first < second * 2, "{first:?}");
    assert!(looked_up().await < second);
    drop(away);
}

#[tokio::test]
async fn a_family_that_fails_is_missing() {
    let host = Host::new();
    host.server
        .tell("db.shop", Told::FailsForV6(vec![ip(1)]), 0);
    let found = host.host("db.shop").await.unwrap();
    let missing = found.missing.unwrap();
    let v6 = Endpoint::host("fd00::1".parse().unwrap());
    assert!(missing.may_have(&v6, None) && !missing.may_have(&Endpoint::host(ip(1)), None));
}

#[tokio::test]
async fn names_are_followed_as_rules_come_and_go() {
    let host = Host::new();
    let registry = Registry::new();
    let metrics = NameMetrics::register(&registry).unwrap();
    let name = |text: &str| Name::Host(Domain::parse(text).unwrap());
    let wanted = |names: &[&str]| Wanted {
        names: names.iter().map(|text| name(text)).collect(),
        clusters: Vec::new(),
    };
    host.server.tell("a.shop", Told::Addresses(vec![ip(1)]), 0);
    let first = wanted(&["a.shop", "b.shop"]);
    let follower = Follower::begin(&first, host.resolver(), metrics).await;
    let mut book = follower.book();
    // Known before anything runs.
    assert_eq!(
        book.borrow().endpoints(&name("a.shop")),
        [Endpoint::host(ip(1))]
    );
    assert_eq!(book.borrow().in_state(State::Absent), 1);
    let (tell, heed) = watch::channel(Arc::new(first));
    let running = tokio::spawn(follower.run(dial_plainly(), heed));
    host.server
        .tell("a.shop", Told::Addresses(vec![ip(1), ip(2)]), 0);
    let grown = |book: &crate::Book| book.endpoints(&name("a.shop")).len() == 2;
    timeout(PATIENCE, book.wait_for(grown))
        .await
        .unwrap()
        .unwrap();
    // A failure takes nothing away.
    host.server.tell("a.shop", Told::Fails, 0);
    let asked = host.server.asked("a.shop");
    host.server.tell("c.shop", Told::Addresses(vec![ip(3)]), 0);
    tell.send(Arc::new(wanted(&["a.shop", "c.shop"]))).unwrap();
    let resolved = |book: &crate::Book| !book.endpoints(&name("c.shop")).is_empty();
    timeout(PATIENCE, book.wait_for(resolved))
        .await
        .unwrap()
        .unwrap();
    while host.server.asked("a.shop") < asked + 3 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let views = book.borrow().views(Instant::now());
    let states: Vec<_> = views
        .iter()
        .map(|view| (view.name.as_str(), view.state, view.addresses.len()))
        .collect();
    assert_eq!(states, [("a.shop", "stale", 2), ("c.shop", "known", 1)]);
    drop(tell);
    timeout(PATIENCE, running).await.unwrap().unwrap();
}

#[tokio::test]
async fn names_that_nobody_answers_for_are_in_nobodys_way() {
    const SILENT: usize = 40;
    let host = Host::new();
    // Nobody here waits for as long as one of them takes.
    host.write(
        "resolv.conf",
        "nameserver 127.0.0.1\noptions timeout:3 attempts:3\n",
    );
    let registry = Registry::new();
    let metrics = NameMetrics::register(&registry).unwrap();
    let name = |text: &str| Name::Host(Domain::parse(text).unwrap());
    // Names that are known come first, then silent ones, and the last is a new one.
    let wanted = |round: usize| {
        let silent = (0..SILENT).map(|n| format!("s{n}.silent{round}.shop"));
        let all = std::iter::once("known.shop".to_owned());
        let all = all.chain(silent).chain([format!("new{round}.shop")]);
        Wanted {
            names: all.map(|text| name(&text)).collect(),
            clusters: Vec::new(),
        }
    };
    for round in 0..3 {
        for n in 0..SILENT {
            let silent = format!("s{n}.silent{round}.shop");
            host.server.tell(&silent, Told::Silence, 0);
        }
        let told = Told::Addresses(vec![ip(1)]);
        host.server.tell(&format!("new{round}.shop"), told, 0);
    }
    let known = Told::Addresses(vec![ip(2)]);
    host.server.tell("known.shop", known, 0);
    let follower = Follower::begin(&Wanted::default(), host.resolver(), metrics).await;
    let mut book = follower.book();
    let (tell, heed) = watch::channel(Arc::new(Wanted::default()));
    let running = tokio::spawn(follower.run(dial_plainly(), heed));
    for round in 0..3 {
        tell.send(Arc::new(wanted(round))).unwrap();
        let new = name(&format!("new{round}.shop"));
        let resolved = |book: &crate::Book| !book.endpoints(&new).is_empty();
        // A policy waits for its names for 3 s.
        timeout(Duration::from_secs(2), book.wait_for(resolved))
            .await
            .unwrap()
            .unwrap();
    }
    // Names whose records have expired are looked up all the while.
    let asked = host.server.asked("known.shop");
    let followed = async {
        while host.server.asked("known.shop") < asked + 2 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(Duration::from_secs(3), followed).await.unwrap();
    drop(tell);
    timeout(PATIENCE, running).await.unwrap().unwrap();
}
