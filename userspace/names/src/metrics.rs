//! The metrics of names.

use policy::Name;
use prometheus::{IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry};

use crate::{Book, Failure, State, resolver::LookedUp};

/// The kinds of names.
const KINDS: [&str; 3] = ["host", "service", "cluster"];

const ANSWERED: &str = "answered";

/// An answer without one family of addresses, or without a host of a service.
const IN_PART: &str = "in_part";

/// The reasons why no rule holds for an address of a name.
const REASONS: [&str; 3] = ["refused", "too_many", "table_full"];

/// The handles of the metrics.
#[derive(Clone, Debug)]
pub struct NameMetrics {
    names: IntGaugeVec,
    addresses: IntGauge,
    lingering: IntGauge,
    left_out: IntGaugeVec,
    look_ups: IntCounterVec,
}

impl NameMetrics {
    /// Declares and registers the metrics.
    ///
    /// # Errors
    /// Two metrics of one name: a mistake in this file.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let names = IntGaugeVec::new(
            Opts::new(
                "underpass_names",
                "Names in rules (`to`), by state: known, stale (the last look-up has failed, and rules hold for earlier \
                 addresses), absent (stands for nothing now), unknown (never resolved: rules do not hold).",
            ),
            &["state"],
        )?;
        let addresses = IntGauge::new(
            "underpass_name_addresses",
            "Addresses that the names in rules stand for, with those that linger.",
        )?;
        let lingering = IntGauge::new(
            "underpass_name_addresses_lingering",
            "Addresses that names in rules do not stand for any more, and for which the rules hold a while longer.",
        )?;
        let left_out = IntGaugeVec::new(
            Opts::new(
                "underpass_name_addresses_left_out",
                "Addresses of names for which no rule holds because of the name, by reason: refused (no database can have \
                 them), too_many (of one name, or hosts of a service), table_full (of all names, each once).",
            ),
            &["reason"],
        )?;
        let look_ups = IntCounterVec::new(
            Opts::new(
                "underpass_name_lookups_total",
                "Look-ups of names in rules, by kind of name and result: answered, in_part (a family of addresses or a host of a \
                 service is missing), or the failure. Until one is answered, the last answer is used.",
            ),
            &["kind", "result"],
        )?;
        registry.register(Box::new(names.clone()))?;
        registry.register(Box::new(addresses.clone()))?;
        registry.register(Box::new(lingering.clone()))?;
        registry.register(Box::new(left_out.clone()))?;
        registry.register(Box::new(look_ups.clone()))?;
        for state in State::ALL {
            names.with_label_values(&[state.as_str()]);
        }
        for reason in REASONS {
            left_out.with_label_values(&[reason]);
        }
        for kind in KINDS {
            for result in [ANSWERED, IN_PART].into_iter().chain(Failure::LABELS) {
                look_ups.with_label_values(&[kind, result]);
            }
        }
        Ok(Self {
            names,
            addresses,
            lingering,
            left_out,
            look_ups,
        })
    }

    pub(crate) fn looked_up(&self, name: &Name, result: &Result<LookedUp, Failure>) {
        let label = match result {
            Ok(found) if found.missing.is_some() => IN_PART,
            Ok(_) => ANSWERED,
            Err(failure) => failure.label(),
        };
        let labels = [name.kind(), label];
        self.look_ups.with_label_values(&labels).inc();
    }

    pub(crate) fn show(&self, book: &Book) {
        for state in State::ALL {
            let names = self.names.with_label_values(&[state.as_str()]);
            names.set(book.in_state(state) as i64);
        }
        let all = book.count(|known| known.addresses().count());
        self.addresses.set(all as i64);
        self.lingering
            .set(book.count(|known| known.lingering()) as i64);
        let [refused, too_many, _] =
            REASONS.map(|reason| self.left_out.with_label_values(&[reason]));
        refused.set(book.count(|known| known.refused()) as i64);
        too_many.set(book.count(|known| known.left_out()) as i64);
    }

    /// Notes how many addresses did not fit into the kernel's table, and says so in the log when there are the first.
    pub fn left_out(&self, addresses: usize) {
        let [_, _, table_full] = REASONS.map(|reason| self.left_out.with_label_values(&[reason]));
        if addresses > 0 && table_full.get() == 0 {
            tracing::warn!(
                addresses,
                "names in rules stand for more addresses than the kernel's table has room for: of the further ones no rule holds"
            );
        }
        table_full.set(addresses as i64);
    }
}
