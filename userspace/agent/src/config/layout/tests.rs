//! Texts before and after: the same meaning, the same comments, and nothing left to do.

use proptest::prelude::*;

use super::*;
use crate::config::schema::tests::documented;

fn out(text: &str) -> String {
    laid_out(Path::new("u.toml"), text).unwrap()
}

fn comments(text: &str) -> Vec<String> {
    let tokens = Source::new(text).lex();
    let comments = tokens.filter(|token| token.kind() == TokenKind::Comment);
    let text = |token: Token| text[token.span().start()..token.span().end()].trim_end();
    comments.map(|token| text(token).to_owned()).collect()
}

/// Means the same, has the same comments, and is not changed again.
fn assert_laid_out(text: &str) {
    let once = out(text);
    let [was, is]: [Table; 2] = [text, &once].map(|text| text.parse().unwrap());
    assert_eq!(was, is, "{text}\n{once}");
    assert_eq!(comments(text), comments(&once), "{text}\n{once}");
    assert_eq!(out(&once), once, "{text}\n{once}");
    assert!(
        !once.contains(" \n") || once.contains("'''") || once.contains("\"\"\""),
        "{once}"
    );
}

#[test]
fn a_file_is_laid_out() {
    let text = "\n\n#head\n[agent] # of it\nmax_flows=7\n\n\n  user_share   =  0.5\n# of the rule\n[[ rule ]]\nname='a'   # one\n\
                action = \"enrich\"#two\nto=[\":1\",\":2\"]\npipeline=[ # steps\n{transform=\"stats\"}, # s\n\n# g\n\
                {transform=\"guard\",refuse=[\n\"ddl\" # d\n]}\n# last\n]\nlabels={}\n";
    let expected = "#head\n[agent] # of it\nmax_flows = 7\n\nuser_share = 0.5\n\n# of the rule\n[[rule]]\nname = 'a'        # one\n\
                    action = \"enrich\" #two\nto = [\":1\", \":2\"]\npipeline = [\n    # steps\n    { transform = \"stats\" }, # s\n    # g\n    \
                    { transform = \"guard\", refuse = [\n        \"ddl\", # d\n    ] },\n    # last\n]\nlabels = {}\n";
    assert_eq!(out(text), expected);
    assert_laid_out(text);
}

#[test]
fn a_long_list_takes_lines_and_a_short_one_stays_as_it_is() {
    let long = format!("a = [{}]\n", ["\"0123456789\""; 12].join(", "));
    assert!(out(&long).starts_with("a = [\n    \"0123456789\",\n"));
    assert_eq!(out("a = [\n1]\n"), "a = [\n    1,\n]\n");
    for text in [
        &*long,
        "a = [\n1]\n",
        "a = 1979-05-27 07:32:00\nb = -1.5e3\nc = \"\"\"\n x \n\"\"\"\r\n",
    ] {
        assert_laid_out(text);
    }
}

#[test]
fn a_value_on_another_line_than_its_key_comes_to_it() {
    let text = "a = { b\n=\n\n[1], c = # d\n2 }\ne = { f =\n1 }\n";
    let expected = "a = {\n    b = [1],\n    # d\n    c = 2,\n}\ne = { f = 1 }\n";
    assert_eq!(out(text), expected);
    assert_laid_out(text);
}

#[test]
fn what_is_no_toml_is_refused_with_its_place() {
    let said = laid_out(Path::new("u.toml"), "a = 1\nb =\n").unwrap_err();
    assert!(said.to_string().starts_with("u.toml:2:"), "{said}");
}

#[test]
fn the_policies_of_the_documentation_are_laid_out() {
    for (_, text) in documented() {
        assert_laid_out(&text);
    }
}

/// Text of tokens that may follow each other, and of some that may not.
fn texts() -> impl Strategy<Value = String> {
    let token = prop::sample::select(vec![
        "a = 1\n",
        "b.c = [",
        "d = {",
        "[t]\n",
        "[[l]]\n",
        "]",
        "}",
        ",",
        "\n",
        "# c\n",
        " ",
        "x = 1",
        "'y'",
        "2",
        "\n\n\n",
        "\t",
        "e = 'f' # g\n",
        "\"\"\"h\n\"\"\"",
        "[",
        "1979-05-27 07:32:00",
        "0.5",
        "\r\n",
    ]);
    prop::collection::vec(token, 0..24).prop_map(|tokens| tokens.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3_000, ..Default::default() })]

    #[test]
    fn whatever_is_toml_means_the_same(text in texts()) {
        if text.parse::<Table>().is_ok() {
            assert_laid_out(&text);
        }
    }
}

/// Lists in tables in lists, with comments wherever one may be.
fn values() -> impl Strategy<Value = String> {
    let space = || prop::sample::select(vec!["", " ", "\n", " # c\n", "\n\n# d\n  "]);
    let leaf = prop::sample::select(vec!["1", "'a'", "true", "\"b\"", "0.5", "[]", "{}"]);
    leaf.prop_map(str::to_owned)
        .prop_recursive(4, 40, 6, move |inner| {
            let items = prop::collection::vec((space(), inner.clone(), space()), 0..6);
            let list = (items, space()).prop_map(|(items, end)| {
                let items = items
                    .into_iter()
                    .map(|(a, value, b)| format!("{a}{value}{b}"));
                format!("[{}{end}]", items.collect::<Vec<_>>().join(","))
            });
            let pairs = prop::collection::vec(([space(), space(), space(), space()], inner), 1..4);
            let table = pairs.prop_map(|values| {
                let pairs = values
                    .iter()
                    .enumerate()
                    .map(|(n, ([a, b, c, d], value))| format!("{a}k{n}{b}={c}{value}{d}"));
                format!("{{{}}}", pairs.collect::<Vec<_>>().join(","))
            });
            prop_oneof![list, table]
        })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..Default::default() })]

    #[test]
    fn nested_values_mean_the_same(values in prop::collection::vec(values(), 1..4)) {
        let keys = values.iter().enumerate().map(|(n, value)| format!("v{n}  ={value}# e{n}\n"));
        assert_laid_out(&keys.collect::<String>());
    }
}
