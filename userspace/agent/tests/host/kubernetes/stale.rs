//! Policies in force that are wrong beside what the node has become: that is no other policy's fault, and does not keep the node's own file out.

use std::{path::Path, thread, time::Duration};

use nix::sys::signal::Signal;
use sandbox::{Agent, Sandbox};

use super::{clusters, played::Played, tenants};
use crate::common::{BINARY, eventually, rule, to};

const CLUSTER: &str = "[[cluster]]\nname = \"orders\"\ncontact_points = [\"127.0.0.1:9\"]\n";

#[test]
fn a_nodes_own_file_comes_before_policies_of_namespaces_and_not_before_the_clusters() {
    let bypass = |to: &str| format!(r#"{{"name": "r", "action": "bypass", "to": ["{to}"]}}"#);
    let namespaced = [
        tenants("bank/web", &bypass("10.0.0.1:9042")),
        tenants("shop/web", &bypass("cluster:orders")),
    ];
    let of_cluster = [clusters("all", &bypass("cluster:orders"))];
    for (of_cluster, goes) in [(&[] as &[String], true), (&of_cluster, false)] {
        let folder = tempfile::tempdir().unwrap();
        let host = Sandbox::new().unwrap();
        let server = Played::start(&host, folder.path(), [of_cluster, &namespaced]);
        let own = &server.settings;
        let (netns, cgroup) = (Some(&host.netns), &host.cgroup);
        let with_cluster = own.clone() + CLUSTER;
        let agent = Agent::start(Path::new(BINARY), netns, cgroup, "", &with_cluster).unwrap();
        let in_force = || agent.get("/config").unwrap();
        let has = |name: &str| in_force().contains(&format!("\"{name}\""));
        let refused = || agent.metric("underpass_policy_source_refused").unwrap();
        let file_refused = || agent.metric("underpass_policy_file_refused").unwrap();
        eventually("they are in force", || {
            has("bank_web.r") && has("shop_web.r")
        });
        assert_eq!(refused(), 0.0);

        let reload = |text: &str| {
            agent.write_policy(text).unwrap();
            agent.signal(Signal::SIGHUP).unwrap();
        };
        // The operator's mistake is no policy's.
        reload(&(with_cluster.clone() + "[nonsense]\n"));
        let failed = || {
            agent
                .metric("underpass_reloads_total{result=\"error\"}")
                .unwrap()
        };
        // A look at the file may come before the signal.
        eventually("the file is refused", || failed() > 0.0);
        // Longer than the agent waits before it looks at policies again.
        thread::sleep(Duration::from_secs(2));
        assert!(!agent.log().contains("the fleet's policy into force"));
        // And no policy's that has changed meanwhile.
        let [web, shop] = namespaced.clone();
        let changed = [web, shop, tenants("bank/new", &bypass("10.0.0.2:9042"))];
        let before = failed();
        server.replace([of_cluster, &changed]);
        eventually("it is in force", || has("bank_new.r"));
        assert_eq!(refused(), 0.0);
        thread::sleep(Duration::from_secs(2));
        assert_eq!((failed(), file_refused()), (before, 1.0));

        // He takes the cluster away, and writes a rule.
        let without = own.clone() + &rule("bypass", &to(&[9043]));
        reload(&without);
        if goes {
            eventually("it is in force", || has("r"));
            assert!(has("bank_web.r") && !has("shop_web.r"), "{}", in_force());
            eventually("a refusal is told", || refused() == 1.0);
        } else {
            let told = "kubernetes:clusterunderpasspolicies/all:1:";
            agent.wait_for_log(told).unwrap();
            thread::sleep(Duration::from_secs(2));
            assert!(!has("r") && has("shop_web.r"), "{}", in_force());
            assert!(has("all.r") && has("bank_new.r"));
            // Others' policies are none of that.
            assert_eq!((refused(), file_refused()), (0.0, 1.0));
        }

        // And brings it back.
        reload(&(without + CLUSTER));
        eventually("all are in force", || {
            has("r") && has("bank_web.r") && has("shop_web.r")
        });
        eventually("none is refused", || refused() == 0.0);
        assert_eq!(file_refused(), 0.0);
    }
}
