use super::*;

fn raw(json: &str) -> Box<RawValue> {
    RawValue::from_string(json.to_owned()).unwrap()
}

fn put<T: PartialEq>(kept: &mut Kept<T>, at: &str, object: (T, usize)) {
    let (namespace, name) = at.split_once('/').unwrap();
    kept.put((namespace.to_owned(), name.to_owned()), object, MAX_NODES);
}

fn with_policies(policies: &[(&str, i64)]) -> Listed {
    let (mut cluster, mut namespaced) = (Kept::default(), Kept::default());
    for (at, generation) in policies {
        let metadata = Metadata {
            generation: *generation,
            uid: format!("uid of {at}"),
            ..Metadata::default()
        };
        let policy = policy(&metadata, &raw("{\"spec\":{}}"));
        let kept = match at.starts_with('/') {
            true => &mut cluster,
            false => &mut namespaced,
        };
        put(kept, at, (policy, 0));
    }
    Listed {
        cluster: Some(cluster),
        namespaced: Some(namespaced),
        nodes: Some(Kept::default()),
        wanted: Some(0),
    }
}

fn says(listed: &mut Listed, name: &str, state: &str) {
    let said = node(&raw(&format!("{{\"state\":{state}}}")), &Answers::default());
    put(
        listed.nodes.as_mut().unwrap(),
        &format!("u/{name}"),
        (said, 0),
    );
}

fn json(status: &Status) -> serde_json::Value {
    serde_json::to_value(status).unwrap()
}

/// Looks for so many seconds, and returns at which of them what was written.
fn written(
    listed: &mut Listed,
    dues: &mut BTreeMap<Name, Due>,
    from: Instant,
    seconds: std::ops::Range<u64>,
) -> Vec<(u64, String, Status)> {
    let mut written = Vec::new();
    for second in seconds {
        let now = from + Duration::from_secs(second);
        for (at, _, status) in count(listed, dues, now).unwrap() {
            dues.get_mut(&at).unwrap().written = Some(now);
            written.push((second, at.2, status));
        }
    }
    written
}

#[test]
fn nodes_count_by_the_generation_that_they_speak_of() {
    let mut listed = with_policies(&[("/c", 1), ("n/a", 3)]);
    let both =
        r#"{"inForce": {"underpasspolicies/n/a": 3, "clusterunderpasspolicies/c": 1, "gone": 1}}"#;
    says(&mut listed, "n1", both);
    says(
        &mut listed,
        "n2",
        r#"{"inForce": {"underpasspolicies/n/a": 2}}"#,
    );
    for name in ["n4", "n3"] {
        let refused = format!(
            r#"{{"refused": {{"underpasspolicies/n/a": {{"generation": 3, "message": "by {name}"}}}}}}"#
        );
        says(&mut listed, name, &refused);
    }
    says(&mut listed, "n5", "\"nonsense\"");
    listed.wanted = Some(7);
    let written = written(&mut listed, &mut BTreeMap::new(), Instant::now(), 0..6);
    let [(_, c, of_c), (_, a, of_a)] = &written[..] else {
        panic!("{written:?}");
    };
    assert_eq!((c.as_str(), a.as_str()), ("c", "a"));
    assert_eq!(json(of_c)["inForce"], "1/7");
    let of_a = json(of_a);
    assert_eq!(of_a["inForce"], "1/7");
    assert_eq!(of_a["observedGeneration"], 3);
    let conditions = of_a["conditions"].as_array().unwrap();
    let said: Vec<_> = conditions
        .iter()
        .map(|one| (&one["status"], &one["message"]))
        .collect();
    assert_eq!(said[0].0, "False");
    assert_eq!(
        said[0].1,
        "in force on 1 of 7 nodes; 2 refuse it, 4 have not answered"
    );
    assert_eq!(*said[1].0, "True");
    assert_eq!(*said[1].1, "n3 (and 1 more): by n3");
}

/// Has so many nodes say the same.
fn all_say(listed: &mut Listed, nodes: usize, state: &serde_json::Value) {
    let object = raw(&serde_json::json!({"state": state}).to_string());
    let said = node(&object, &Answers::default());
    let kept = listed.nodes.as_mut().unwrap();
    for number in 0..nodes {
        put(kept, &format!("u/n{number:04}"), (said.clone(), 0));
    }
    listed.wanted = Some(nodes);
}

#[test]
fn every_node_is_counted_however_many_policies_agents_read() {
    const NODES: usize = 5_000;
    let names: Vec<String> = (0..MAX_ANSWERS).map(|n| format!("n/{n:04}")).collect();
    let policies: Vec<(&str, i64)> = names.iter().map(|name| (name.as_str(), 1)).collect();
    let mut listed = with_policies(&policies);
    let (mut dues, from) = (BTreeMap::new(), Instant::now());
    assert!(count(&listed, &mut dues, from).unwrap().is_empty());
    // As many are in force as agents have.
    let said = names.iter().enumerate();
    let (in_force, refused): (Vec<_>, Vec<_>) =
        said.partition(|(n, _)| n % (MAX_ANSWERS / MAX_OBJECTS) == 0);
    let name = |name: &str| format!("underpasspolicies/{name}");
    let in_force: BTreeMap<_, _> = in_force.iter().map(|(_, at)| (name(at), 1)).collect();
    assert_eq!(in_force.len(), MAX_OBJECTS);
    let why = serde_json::json!({"generation": 1, "message": "for want of room"});
    let refused: BTreeMap<_, _> = refused.iter().map(|(_, at)| (name(at), &why)).collect();
    let state = serde_json::json!({"inForce": in_force, "refused": refused});
    all_say(&mut listed, NODES, &state);
    assert!(!listed.has_uncounted_nodes());
    let statuses = count(&listed, &mut dues, from + SOONEST).unwrap();
    let [(first, _, in_force), (second, _, refused)] = &statuses[..] else {
        panic!("{statuses:?}");
    };
    assert_eq!((first.2.as_str(), second.2.as_str()), ("0000", "0001"));
    let (in_force, refused) = (json(in_force), json(refused));
    assert_eq!(in_force["inForce"], "5000/5000");
    assert_eq!(in_force["conditions"][0]["reason"], "OnEveryNode");
    assert_eq!(refused["nodesRefused"], NODES);
    let message = &refused["conditions"][1]["message"];
    assert_eq!(*message, "n0000 (and 4999 more): for want of room");
}

#[test]
fn nodes_beyond_those_that_are_counted_are_told_of() {
    let mut listed = with_policies(&[("n/a", 1)]);
    let state = serde_json::json!({"inForce": {"underpasspolicies/n/a": 1}});
    let message = |listed: &mut Listed| {
        let written = written(listed, &mut BTreeMap::new(), Instant::now(), 0..5);
        let status = json(&written[0].2);
        let condition = &status["conditions"][0];
        (condition["reason"].clone(), condition["message"].clone())
    };
    all_say(&mut listed, MAX_NODES, &state);
    assert_eq!(message(&mut listed).0, "OnEveryNode");
    all_say(&mut listed, MAX_NODES + 1, &state);
    // The set of pods may be away.
    listed.wanted = Some(0);
    let (reason, message) = message(&mut listed);
    assert_eq!(reason, "OnSomeNodes");
    assert_eq!(
        message,
        "in force on 8192 of 8193 nodes; 0 refuse it, 1 have not answered, or are beyond the 8192 that are counted"
    );
}

#[test]
fn until_all_is_listed_nothing_is_counted() {
    let mut listed = with_policies(&[("n/a", 1)]);
    listed.wanted = None;
    assert!(count(&listed, &mut BTreeMap::new(), Instant::now()).is_none());
}

#[test]
fn a_status_is_written_soon_and_the_less_often_the_older_the_policy() {
    let mut listed = with_policies(&[("n/a", 1)]);
    let (mut dues, from) = (BTreeMap::new(), Instant::now());
    let mut seconds = Vec::new();
    for second in 0..3600 {
        // The count moves all the time.
        listed.wanted = Some(second as usize + 1);
        let range = second..second + 1;
        let written = written(&mut listed, &mut dues, from, range);
        seconds.extend(written.into_iter().map(|(second, ..)| second));
    }
    assert_eq!(seconds[..7], [4, 8, 16, 32, 64, 128, 256]);
    assert!(seconds.len() < 20, "{seconds:?}");
    // Another generation is a new beginning.
    listed.namespaced = with_policies(&[("n/a", 2)]).namespaced;
    let again = written(&mut listed, &mut dues, from, 3600..3606);
    assert_eq!(again[0].0, 3604);
}

#[test]
fn statuses_of_many_are_written_one_after_the_other_and_none_that_is_the_same() {
    let names: Vec<String> = (0..20).map(|n| format!("n/{n:02}")).collect();
    let policies: Vec<(&str, i64)> = names.iter().map(|name| (name.as_str(), 1)).collect();
    let mut listed = with_policies(&policies);
    let (mut dues, from) = (BTreeMap::new(), Instant::now());
    let done = written(&mut listed, &mut dues, from, 0..60);
    let first: Vec<_> = done
        .iter()
        .take(20)
        .map(|(second, name, _)| (*second, name))
        .collect();
    let different: HashSet<_> = first.iter().map(|(_, name)| *name).collect();
    assert_eq!(different.len(), 20);
    assert_eq!((first[0].0, first[19].0), (4, 13));

    // As they stand there by now.
    let status = done[0].2.clone();
    let namespaced = listed.namespaced.as_mut().unwrap();
    for name in &names {
        let policy = Policy {
            uid: "1".to_owned(),
            generation: 1,
            status: status.clone(),
        };
        put(namespaced, name, (policy, 0));
    }
    assert!(written(&mut listed, &mut dues, from, 1000..1100).is_empty());
    // The time of a condition is that of its change.
    listed.wanted = Some(1);
    let moved = written(&mut listed, &mut dues, from, 1100..1101);
    let times = |status: &Status| {
        let conditions = json(status)["conditions"].clone();
        let times = conditions.as_array().unwrap().iter();
        times
            .map(|one| one["lastTransitionTime"].clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(moved.len(), MAX_STATUS_WRITES);
    assert_eq!(times(&moved[0].2), times(&status));
}
