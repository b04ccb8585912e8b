//! A guard that warns: the Python driver has its warnings, beside those of Cassandra.

use sandbox::Cgroup;
use serde_json::{Value, json};

use super::{cassandra::RULE, operating, python::Suite, seen};

const PIPELINE: &str = "pipeline = [\
    { transform = \"guard\", refuse = [\"no_where\"], max_batch = 10, mode = \"warn\" }]";

#[test]
fn the_driver_has_the_warnings() {
    let test = "warned::the_driver_has_the_warnings";
    let Some(suite) = Suite::provided(test) else {
        return;
    };
    for (version, compression) in [(3, "none"), (4, "lz4"), (5, "none")] {
        let cgroup = Cgroup::new().unwrap();
        let agent = suite
            .cassandra
            .agent_with(&cgroup, "enrich", "open", PIPELINE);
        let keyspace = format!("underpass_warned_v{version}_{compression}");
        let version_said = version.to_string();
        let args = [
            ["--keyspace", &keyspace],
            ["--protocol", &version_said],
            ["--compression", compression],
        ];
        let details = suite.run(&cgroup, "warned_suite.py", args.as_flattened());
        let case = (version, compression);
        let counted = seen::transforms(&agent);
        if version == 3 {
            for asked in ["harmless", "query", "prepared", "error", "batch"] {
                assert_eq!(details[asked], Value::Null, "{case:?} {asked}");
            }
            assert!(counted["not_warned"] >= 4.0, "{counted:?}");
            assert_eq!(counted.get("warned"), None, "{counted:?}");
            continue;
        }
        let own = |why: &str| format!("underpass: rule {RULE} would refuse this: {why}");
        assert_eq!(details["harmless"], Value::Null, "{case:?}");
        for asked in ["query", "prepared", "error"] {
            let expected = json!([own("a SELECT needs a WHERE")]);
            assert_eq!(details[asked], expected, "{case:?} {asked}");
        }
        let batch = details["batch"].as_array().unwrap();
        assert_eq!(
            batch[0],
            own("a batch has 12 statements, and 10 are allowed"),
            "{case:?}"
        );
        let of_cassandra = batch[1].as_str().unwrap();
        assert!(of_cassandra.starts_with("Unlogged batch"), "{of_cassandra}");
        if version == 5 {
            let shown = ["query", "prepared", "error", "batch"];
            let shown = shown.map(|asked| format!("{asked}: {}\n", details[asked]));
            operating::holds("Warnings first", &[shown.concat()]);
        }
        // All that were warned of have been told.
        assert_eq!(counted["warned"], counted["changed"], "{counted:?}");
        assert_eq!(counted.get("not_warned"), None, "{counted:?}");
    }
}
