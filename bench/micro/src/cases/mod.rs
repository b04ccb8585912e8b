//! The list of cases: a name, and work that can be repeated any number of times.

mod case;
mod enrich;
mod flow;
mod parts;
mod recorder;
mod wire;

pub use case::{Case, Tally};

/// A case before its inputs are built.
pub struct Entry {
    /// The name, as `group/name`.
    pub name: &'static str,
    /// Builds the inputs.
    pub build: fn() -> Case,
}

/// All cases, innermost part first, with the work of one round, and the meaning of an element.
pub const ENTRIES: &[Entry] = &[
    // 1,024 headers without bodies; a header.
    entry("part/header", parts::header),
    // A chunk of 64 KiB full of small EXECUTEs; a frame.
    entry("part/deframe-small", parts::deframe_small),
    // One QUERY of 1 MiB in chunks of 64 KiB, its first 64 KiB collected; a frame.
    entry("part/deframe-large", parts::deframe_large),
    // A chunk of 64 KiB full of v5 segments with a small frame each; a segment.
    entry("part/segment-self-contained", parts::segment_self_contained),
    // 1 MiB over v5 segments of 128 KiB in chunks of 64 KiB, each collected; a segment.
    entry("part/segment-multi", parts::segment_multi),
    // The text of a SELECT to its statement; a statement.
    entry("statement/select", parts::select),
    // The text of an INSERT to its statement; a statement.
    entry("statement/insert", parts::insert),
    // A chunk of 32 QUERYs, then forgotten; a request.
    entry("request/query", flow::query),
    // A chunk of 32 EXECUTEs, then forgotten; a request.
    entry("request/execute", flow::execute),
    // A chunk of 32 BATCHes of 4 prepared children, then forgotten; a request.
    entry("request/batch", flow::batch),
    // A chunk of 32 RESULTs with a row, their requests put in place before; a response.
    entry("response/rows", flow::rows),
    // A chunk of 32 empty RESULTs, their requests put in place before; a response.
    entry("response/void", flow::void),
    // A chunk of 32 ERRORs, their requests put in place before; a response.
    entry("response/error", flow::error),
    // An EXECUTE and its row, counted as the agent does; an operation.
    entry("enrich/execute-v4", enrich::execute_v4),
    // The same in v5, a segment each; an operation.
    entry("enrich/execute-v5", enrich::execute_v5),
    // A QUERY and its row, counted as the agent does; an operation.
    entry("enrich/query-v4", enrich::query_v4),
    // 32 EXECUTEs in a chunk and their rows in another; an operation.
    entry("enrich/pipelined-v4", enrich::pipelined_v4),
    // EXECUTEs of 64 tables in turn, more than a flow has at hand; an operation.
    entry("enrich/many-tables-v4", enrich::many_tables_v4),
    // An EXECUTE and 256 KiB of rows in chunks of 64 KiB; an operation.
    entry("enrich/large-rows-v4", enrich::large_rows_v4),
    // An EXECUTE and its row under a rule with `stats`; an operation.
    entry(
        "enrich/execute-with-stats-v4",
        enrich::execute_with_stats_v4,
    ),
    // A QUERY and its row under a rule with `stats`; an operation.
    entry("enrich/query-with-stats-v4", enrich::query_with_stats_v4),
];

const fn entry(name: &'static str, build: fn() -> Case) -> Entry {
    Entry { name, build }
}

/// The case of this name.
pub fn find(name: &str) -> Option<&'static Entry> {
    ENTRIES.iter().find(|entry| entry.name == name)
}
