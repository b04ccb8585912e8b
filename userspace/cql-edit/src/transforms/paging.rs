//! `paging`: caps how many rows a page may have.
//!
//! Left alone is what a smaller page, or a page at all, would make another question: reads of the server's own keyspaces,
//! by which drivers begin; aggregates, of which there is one row; ORDER BY with IN, which the database refuses to page;
//! and the nearest vectors, which it does not page.

use std::sync::Arc;

use serde::Deserialize;

use super::prepared::{Prepared, Preparing};
use crate::sites::{Spot, spots};
use crate::{Caller, Error, Outcome, Refused, Request, Response, Statement, Transform, Unpaired};
use cql::text::{Token, parse};
use cql::{Opcode, StatementKind, is_system_keyspace};

/// Limits how many rows a page may have. Reads of the server's own keyspaces, aggregates, and what the database does not
/// page are left alone.
#[derive(Clone, Debug, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("examples" = [{"at_most": 1000}]))]
pub struct PagingSettings {
    /// Rows of a page.
    #[schemars(range(min = 1, max = i32::MAX))]
    pub at_most: i32,
    /// Treatment of a SELECT without a page size, whose client may not know that there are further pages.
    #[serde(default)]
    pub without_size: WithoutSize,
}

/// Treatment of a SELECT without a page size.
#[derive(Clone, Copy, Debug, Default, Deserialize, schemars::JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum WithoutSize {
    /// The client gets the whole answer.
    #[default]
    Pass,
    /// The request is answered by an error that says what to do, unless its LIMIT is low enough.
    Refuse,
    /// The request is given the page size. Only for clients that are known to ask for further pages: others take the first one
    /// for all there is.
    Set,
}

#[derive(Debug)]
struct Paging {
    at_most: i32,
    without_size: WithoutSize,
    prepared: Prepared<Pages>,
}

/// The effect of a page size on a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pages {
    /// The statement is left as it is.
    LeftAlone,
    /// A SELECT of any number of rows.
    Any,
    /// A SELECT of so many rows at most.
    Limited(i64),
}

impl PagingSettings {
    pub(super) fn build(self) -> Result<Arc<dyn Transform>, String> {
        match self.at_most {
            1.. => Ok(Arc::new(Paging {
                at_most: self.at_most,
                without_size: self.without_size,
                prepared: Prepared::default(),
            })),
            rows => Err(format!("at_most: expected 1 row or more, found {rows}")),
        }
    }
}

impl Pages {
    /// Reads a text. `keyspace`: that of tables without one, if it is known.
    fn of(text: &[u8], keyspace: Option<&str>) -> Self {
        let statement = parse(text, text.len()).statement;
        match statement.kind {
            StatementKind::Select => {}
            // Nobody knows what it is; no page size does harm to what returns no rows.
            StatementKind::Unknown | StatementKind::Query => return Self::Any,
            _ => return Self::LeftAlone,
        }
        let own = statement.keyspace.map(cql::text::Name::to_boxed);
        if own.as_deref().or(keyspace).is_some_and(is_system_keyspace) {
            return Self::LeftAlone;
        }
        spots(text).map_or(Self::Any, |spots| Self::of_select(&spots))
    }

    fn of_select(spots: &[Spot<'_>]) -> Self {
        let outer = outside_of_brackets(spots);
        let place = |word: &str| {
            outer
                .iter()
                .position(|at| spots.get(*at).is_some_and(|spot| spot.is_word(word)))
        };
        let has = |first: &str, second: &str| {
            outer.windows(2).any(|pair| {
                let is_word = |n: usize, word| {
                    pair.get(n)
                        .and_then(|at| spots.get(*at))
                        .is_some_and(|spot| spot.is_word(word))
                };
                is_word(0, first) && is_word(1, second)
            })
        };
        let is_ordered = has("ORDER", "BY");
        let is_nearest = is_ordered && place("ANN").is_some();
        let is_one = !has("GROUP", "BY") && is_aggregate(spots);
        if is_ordered && place("IN").is_some() || is_nearest || is_one {
            return Self::LeftAlone;
        }
        // Not that of each partition.
        let limit = outer.iter().enumerate().rev().find_map(|(n, at)| {
            let before = n.checked_sub(1).and_then(|n| spots.get(*outer.get(n)?));
            let is_limit = spots.get(*at)?.is_word("LIMIT") && !before?.is_word("PARTITION");
            match spots.get(*outer.get(n + 1)?)?.token {
                Token::Integer(rows) if is_limit => rows.parse().ok(),
                _ => None,
            }
        });
        limit.map_or(Self::Any, Self::Limited)
    }
}

/// The places of the tokens that no bracket encloses.
fn outside_of_brackets(spots: &[Spot<'_>]) -> Vec<usize> {
    let mut open = 0_usize;
    let mut outer = Vec::new();
    for (at, spot) in spots.iter().enumerate() {
        match spot.token {
            Token::Sign(b'(' | b'[' | b'{') => open += 1,
            Token::Sign(b')' | b']' | b'}') => open = open.saturating_sub(1),
            _ if open == 0 => outer.push(at),
            _ => {}
        }
    }
    outer
}

/// The server's own aggregates (`AggregateFcts.java`). Those that users have made may be paged: their answer is the same.
const AGGREGATES: [&str; 5] = ["COUNT", "MIN", "MAX", "SUM", "AVG"];

/// Whether something that is selected is an aggregate of all rows.
fn is_aggregate(spots: &[Spot<'_>]) -> bool {
    let list = spots.iter().take_while(|spot| !spot.is_word("FROM"));
    let mut called = list.zip(spots.iter().skip(1));
    called.any(|(name, behind)| {
        behind.is_sign(b'(') && AGGREGATES.iter().any(|word| name.is_word(word))
    })
}

impl Paging {
    fn is_small(&self, size: Option<i32>) -> bool {
        size.is_some_and(|rows| (1..=self.at_most).contains(&rows))
    }

    /// # Errors
    /// The statement is prepared and not known: the client has to prepare it again.
    fn pages(&self, request: &Request<'_>, caller: &Caller) -> Result<Pages, Outcome> {
        match request.statements().next() {
            Some(Statement::Text(text)) => Ok(Pages::of(text, request.sure_keyspace(caller))),
            Some(Statement::Prepared(id)) => self.prepared.known(id, caller),
            None => Ok(Pages::LeftAlone),
        }
    }

    fn sets(&self, request: &mut Request<'_>) -> Outcome {
        request.set_page_size(self.at_most);
        Outcome::Changed
    }
}

impl Transform for Paging {
    fn name(&self) -> &'static str {
        "paging"
    }

    fn wants(&self, opcode: Opcode) -> bool {
        matches!(opcode, Opcode::Query | Opcode::Execute | Opcode::Prepare)
    }

    fn is_strict(&self) -> bool {
        true
    }

    /// The size of a page does not depend on the response.
    fn unpaired(&self) -> Unpaired {
        Unpaired::Judged
    }

    fn lacks(&self, id: &[u8], caller: &Caller) -> bool {
        self.prepared.known(id, caller).is_err()
    }

    fn learns(&self, id: &[u8], keyspace: Option<&str>, text: &[u8], caller: &Caller) {
        self.prepared.learn(id, caller, Pages::of(text, keyspace));
    }

    fn request(&self, request: &mut Request<'_>, caller: &Caller, _: u64) -> Outcome {
        if request.opcode() == Opcode::Prepare {
            if let Ok(pages) = self.pages(request, caller) {
                let preparing = Preparing::of(request, request.sure_keyspace(caller), caller);
                let number = self.prepared.goes_out(preparing, pages);
                request.await_response(number);
            }
            return Outcome::Pass;
        }
        let size = request.page_size();
        if self.is_small(size) {
            return Outcome::Pass;
        }
        // Cassandra takes 0 and less for none at all (`QueryOptions.java`). Who asks for a further page can.
        let can_page = size.is_some_and(|rows| rows > 0) || request.has_paging_state();
        if !can_page && self.without_size == WithoutSize::Pass {
            return Outcome::Pass;
        }
        let pages = match self.pages(request, caller) {
            Ok(pages) => pages,
            // Whatever it is, it is paged already.
            Err(_) if can_page => Pages::Any,
            Err(again) => return again,
        };
        let is_low = matches!(pages, Pages::Limited(rows) if rows <= i64::from(self.at_most));
        match pages {
            Pages::LeftAlone => Outcome::Pass,
            _ if can_page || self.without_size == WithoutSize::Set => self.sets(request),
            _ if is_low => Outcome::Pass,
            _ => Outcome::Refuse(Refused {
                reason: "no_page_size",
                error: Error::Invalid(format!(
                    "the proxy's policy has at most {0} rows to a page, and the request names no page size: name one, \
                     or a LIMIT of {0} rows or less",
                    self.at_most
                )),
            }),
        }
    }

    fn response(&self, response: &mut Response<'_>, _: &Caller, number: u64) -> bool {
        self.prepared.came_back(number, response.prepared_id());
        false
    }
}
