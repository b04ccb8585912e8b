//! Measurements of the edge, as they are kept in `bench/results`, and the page that shows them.

use std::{fmt::Write as _, fs};

use sandbox::measured::file;
use serde::{Deserialize, Serialize};

const SCHEMA: u32 = 1;
const JSON: &str = "edge.json";
const PAGE: &str = "edge.md";

/// By `BPF_PROG_TEST_RUN`, JITed, in ns.
const DENY_NS: u64 = 60;
const FORWARD_NS: u64 = 200;

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Results {
    pub schema: u32,
    pub circumstances: Vec<(String, String)>,
    pub rules: u32,
    pub connections: u32,
    /// Cost of a program that does nothing: a part of every other figure.
    pub nothing_ns: u64,
    pub costs: Vec<Cost>,
    pub drops: Drops,
}

/// A packet, and what it costs.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Cost {
    pub what: String,
    pub family: String,
    /// The median of the turns.
    pub median_ns: u64,
    /// A tenth of the turns is below.
    pub low_ns: u64,
    /// A tenth is above.
    pub high_ns: u64,
    pub bar: Option<Bar>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Bar {
    Deny,
    Forward,
}

/// Packets that an interface drops in a second on one processor, which sends them, too: medians.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Drops {
    pub edge_per_second: f64,
    pub nftables_per_second: f64,
    /// Ratios within one turn, from the least to the greatest.
    pub ratios: Vec<f64>,
}

impl Cost {
    /// Computes the cost from the figures of several turns.
    pub(crate) fn of(what: &str, family: &str, mut turns: Vec<u64>, bar: Option<Bar>) -> Self {
        turns.sort_unstable();
        let at = |tenths: usize| turns[(turns.len() - 1) * tenths / 10];
        Self {
            what: what.to_owned(),
            family: family.to_owned(),
            median_ns: at(5),
            low_ns: at(1),
            high_ns: at(9),
            bar,
        }
    }

    fn verdict(&self) -> String {
        let Some(bar) = self.bar else {
            return String::new();
        };
        let most = match bar {
            Bar::Deny => DENY_NS,
            Bar::Forward => FORWARD_NS,
        };
        match self.median_ns <= most {
            true => format!("≤ {most}: met"),
            false => format!("≤ {most}: **missed**"),
        }
    }
}

impl Drops {
    pub(crate) fn ratio(&self) -> f64 {
        self.ratios[self.ratios.len() / 2]
    }
}

impl Results {
    pub(crate) fn new(
        nothing_ns: u64,
        (rules, connections): (u32, u32),
        costs: Vec<Cost>,
        drops: Drops,
    ) -> Self {
        Self {
            schema: SCHEMA,
            circumstances: sandbox::measured::circumstances(),
            rules,
            connections,
            nothing_ns,
            costs,
            drops,
        }
    }

    fn page(&self) -> String {
        let mut page = String::from(
            "<!-- Rendered from edge.json by `UPDATE_RESULTS=1 cargo test -p underpass-dataplane --release \
             --test edge -- --ignored`. -->\n\
             # A packet at the edge\n\n",
        );
        let _ = writeln!(
            page,
            "By `BPF_PROG_TEST_RUN`, with {} rules; forwarded packets with {} connections in the table. In ns, \
             of which {} are what a program costs that does nothing. The spread is that of eight turns in ten.\n\n\
             | packet | family | ns | spread | bar |\n\
             | --- | --- | ---: | ---: | --- |",
            self.rules, self.connections, self.nothing_ns
        );
        for cost in &self.costs {
            let _ = writeln!(
                page,
                "| {} | {} | {} | {} – {} | {} |",
                cost.what,
                cost.family,
                cost.median_ns,
                cost.low_ns,
                cost.high_ns,
                cost.verdict()
            );
        }
        let _ = writeln!(
            page,
            "\nRuns on one frame follow each other, so their connection is in the processor's caches. *Once more* is \
             the same frame run again at once; *goes on* comes after the counters were read. An ACK that is denied \
             where something is forwarded is looked for among the forwarded connections before: that is what it \
             costs more.\n\n\
             ## Packets dropped in a second\n\n\
             On one processor, which also makes and sends them, over a veth in generic mode; nftables drops in \
             `prerouting` at priority `raw`. Medians of {} turns, one after the other.\n\n\
             | by | packets in a second |\n\
             | --- | ---: |\n\
             | the edge | {:.0} |\n\
             | nftables | {:.0} |\n\n\
             The edge drops {:.2} times as many ({:.2} – {:.2}).\n\n\
             ## Where\n",
            self.drops.ratios.len(),
            self.drops.edge_per_second,
            self.drops.nftables_per_second,
            self.drops.ratio(),
            self.drops.ratios[0],
            self.drops.ratios[self.drops.ratios.len() - 1],
        );
        for (what, value) in &self.circumstances {
            let _ = writeln!(page, "- {what}: {value}");
        }
        page
    }

    /// Keeps it, where that was asked for; shows it in any case.
    pub(crate) fn write(&self) {
        println!("{}", self.page());
        if std::env::var_os("UPDATE_RESULTS").is_some() {
            let json = serde_json::to_string_pretty(self).unwrap() + "\n";
            fs::write(file(JSON), json).unwrap();
            fs::write(file(PAGE), self.page()).unwrap();
        }
    }
}

#[test]
fn the_page_is_rendered_from_the_file() {
    let json = fs::read_to_string(file(JSON)).unwrap();
    let results: Results = serde_json::from_str(&json).unwrap();
    assert_eq!(results.schema, SCHEMA);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(file(PAGE), results.page()).unwrap();
    }
    assert_eq!(fs::read_to_string(file(PAGE)).unwrap(), results.page());
}
