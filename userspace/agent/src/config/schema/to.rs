//! The form of an entry of `to`, as a regular expression for the chart's CRDs: what [`policy::Destination::parse`] refuses by its form, the API
//! server refuses, too. How long a name is, which of two ports is the lower one, and how a network is written, the agent says.

use serde_json::{Value, json};

/// A number up to 65535 that is not zero.
const PORT: &str =
    "([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])";

/// A number up to 255.
const OCTET: &str = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";

/// A group of an IPv6 address.
const GROUP: &str = "[0-9A-Fa-f]{1,4}";

/// IPv6 addresses: `H` is a group, and `V` an IPv4 address (RFC 4291, 2.2).
const V6: &str = "((H:){7}H|(H:){1,7}:|(H:){1,6}:H|(H:){1,5}(:H){1,2}|(H:){1,4}(:H){1,3}|(H:){1,3}(:H){1,4}\
                  |(H:){1,2}(:H){1,5}|H:(:H){1,6}|:((:H){1,7}|:)\
                  |((H:){6}|::(H:){0,5}|(H:){1,5}:|(H:){1,4}:H:|(H:){1,3}(:H){1,2}:|(H:){1,2}(:H){1,3}:|H:(:H){1,4}:)V)";

/// A label of a name, and what may follow its first character.
const LABEL: &str = "[A-Za-z0-9_]R";
const REST: &str = "([A-Za-z0-9_-]*[A-Za-z0-9_])?";

/// The form as JSON Schema has it.
pub(super) fn form() -> Value {
    let ports = format!("{PORT}(-{PORT})?");
    let v4 = format!("({OCTET}[.]){{3}}{OCTET}");
    let v6 = V6.replace('H', GROUP).replace('V', &v4);
    let network = format!("{v4}(/(3[0-2]|[12]?[0-9]))?");
    let in_brackets = format!("\\[{v6}(/(12[0-8]|1[01][0-9]|[1-9]?[0-9]))?\\]");
    // What has no letter in its last label is an address that is misspelt.
    let one = "([A-Za-z0-9][A-Za-z0-9_-]*)?[A-Za-z]R";
    let last = "([A-Za-z0-9_][A-Za-z0-9_-]*)?[A-Za-z]R";
    let labels = format!("[A-Za-z0-9]R([.]{LABEL})*[.]{last}[.]?|{one}[.]");
    let service = format!("_[A-Za-z0-9_-]*[A-Za-z0-9_][.]_[Tt][Cc][Pp]([.]{LABEL})+[.]?");
    let cluster = "cluster:[A-Za-z][A-Za-z0-9_.-]{0,62}";
    let with_port = format!("({network}|{in_brackets}|{labels})(:{ports})?|({one})?:{ports}");
    let all = format!("^({cluster}|{service}|{with_port})$").replace('R', REST);
    json!({
        "pattern": all,
        // A cluster tells its ports.
        "not": {"pattern": "^cluster:[0-9]"},
    })
}

#[cfg(test)]
mod tests {
    use jsonschema::Validator;
    use policy::Destination;
    use proptest::prelude::*;

    use super::*;

    fn validator() -> Validator {
        jsonschema::draft7::new(&form()).unwrap()
    }

    #[test]
    fn the_form_is_that_of_the_parser() {
        let form = validator();
        for good in [
            "10.1.0.0/16:9042",
            "10.1.2.3",
            "10.1.2.3:9042",
            "10.1.2.3:9042-9044",
            "0.0.0.0/0",
            "255.255.255.255/32:65535",
            ":1",
            ":9042-9044",
            "[::]",
            "[::/0]:9042",
            "[::1]:9042",
            "[fd00::/8]:9042-9043",
            "[fd00::1]",
            "[1:2:3:4:5:6:7:8]:1",
            "[1:2:3:4:5:6:7::]:1",
            "[::2:3:4:5:6:7:8]:1",
            "[1::3:4:5:6:7:8]:1",
            "[1:2:3:4::8]:1",
            "[FD00::a/128]:1",
            "[64:ff9b::192.0.2.1]:1",
            "[1:2:3:4:5:6:192.0.2.1]:1",
            "[::192.0.2.1]:1",
            "db.shop:9042",
            "db.shop",
            "db.shop.",
            "Cassandra.shop.svc:9042-9044",
            "db:9042",
            "db.:9042",
            "db.",
            "my_db.shop",
            "fd00:9042",
            "1a.example:9042",
            "1.2.3.a4",
            "a--b.c-d.e_f:1",
            "x._y.z:1",
            "clusters:9042",
            "cluster.:9042",
            "cluster:shop",
            "cluster:Shop-1.a_b",
            "_cql._tcp.shop.example",
            "_CQL._TCP.shop",
            "_cql._tcp.shop.",
        ] {
            assert!(Destination::parse(good).is_ok(), "{good}");
            assert!(form.is_valid(&json!(good)), "{good}");
        }
        for bad in [
            "",
            " ",
            "nonsense",
            "cluster",
            "10.1.2",
            "10.1.2.300:9042",
            "10.1.2.3.4",
            "10.1.2.3:0",
            "10.1.2.3:65536",
            "10.1.2.3:99999",
            "10.1.2.3:cql",
            "10.1.2.3:",
            "10.1.2.3:-1",
            "10.1.2.3:1-",
            "10.1.0.0/33",
            "10.1.0.0/",
            "10.1.0.0/016",
            "010.1.0.0/16",
            ":",
            ":0",
            ":09042",
            ":+9042",
            "9042",
            "fd00::1",
            "fd00::1:9042",
            "[fd00::1",
            "fd00::1]",
            "[]",
            "[]:9042",
            "[fd00::1]9042",
            "[fd00::1]:",
            "[fd00::1/129]",
            "[fd00::1::2]",
            "[fd00:1]",
            "[:::]",
            "[12345::]",
            "[1:2:3:4:5:6:7:8:9]",
            "[1:2:3:4:5:6:7:8::]",
            "[1:2:3:4:5:6:7:192.0.2.1]",
            "[10.1.2.3]:9042",
            "[db]:9042",
            "db.shop/24:9042",
            "db.shop:",
            "db.shop:0",
            "db.shop:cql",
            "db.shop:9042:9043",
            "db..shop:9042",
            ".shop:9042",
            "db.shop..",
            "-db.shop:9042",
            "db-.shop:9042",
            "db.shop-:9042",
            "db shop:9042",
            " db.shop",
            "db.shop\n",
            "d\u{e4}.shop:9042",
            "*.shop:9042",
            "db.1:9042",
            "http://db.shop:9042",
            "cluster:",
            "cluster:9042",
            "cluster:1shop",
            "cluster:shop:9042",
            "cluster: shop",
            "_cql._tcp.shop:9042",
            "_cql._udp.shop",
            "_cql.shop",
            "_cql._tcp",
            "_cql._tcp.",
            "_._tcp.shop",
            "_db.shop:9042",
        ] {
            assert!(Destination::parse(bad).is_err(), "{bad}");
            assert!(!form.is_valid(&json!(bad)), "{bad}");
        }
    }

    /// Words of entries, which chance puts together.
    fn words() -> impl Strategy<Value = String> {
        let fixed = "(cluster|_cql|_tcp|db|shop|fd00|a|10|255|256|0|1|9042|65535|65536|128|-|_|[.]|:|::|/|\\[|\\])";
        proptest::collection::vec(fixed, 1..9).prop_map(|words| words.concat())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn what_the_parser_takes_has_the_form_and_what_it_refuses_has_it_only_for_other_reasons(text in words()) {
            thread_local!(static FORM: Validator = validator());
            let has_form = FORM.with(|form| form.is_valid(&json!(text)));
            match Destination::parse(&text) {
                Ok(_) => prop_assert!(has_form, "{text}"),
                Err(why) if has_form => {
                    let others = [
                        "a network's first address",
                        "the IPv4 form of an IPv4-mapped address",
                        "ports, the lowest first",
                        "the lowest first: `",
                    ];
                    prop_assert!(others.iter().any(|other| why.contains(other)), "{text}: {why}");
                }
                Err(_) => {}
            }
        }
    }
}
