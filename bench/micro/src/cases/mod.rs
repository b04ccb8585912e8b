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
    /// The meaning of an element, and the work of one round.
    pub about: &'static str,
    /// Builds the inputs.
    pub build: fn() -> Case,
}

/// All cases, innermost part first.
pub const ENTRIES: &[Entry] = &[
    Entry {
        name: "part/header",
        about: "1,024 headers without bodies; a header",
        build: parts::header,
    },
    Entry {
        name: "part/deframe-small",
        about: "a chunk of 64 KiB full of small EXECUTEs; a frame",
        build: parts::deframe_small,
    },
    Entry {
        name: "part/deframe-large",
        about: "one QUERY of 1 MiB in chunks of 64 KiB, its first 64 KiB collected; a frame",
        build: parts::deframe_large,
    },
    Entry {
        name: "part/segment-self-contained",
        about: "a chunk of 64 KiB full of v5 segments with a small frame each; a segment",
        build: parts::segment_self_contained,
    },
    Entry {
        name: "part/segment-multi",
        about: "1 MiB over v5 segments of 128 KiB in chunks of 64 KiB, each collected; a segment",
        build: parts::segment_multi,
    },
    Entry {
        name: "statement/select",
        about: "the text of a SELECT to its statement; a statement",
        build: parts::select,
    },
    Entry {
        name: "statement/insert",
        about: "the text of an INSERT to its statement; a statement",
        build: parts::insert,
    },
    Entry {
        name: "request/query",
        about: "a chunk of 32 QUERYs, then forgotten; a request",
        build: flow::query,
    },
    Entry {
        name: "request/execute",
        about: "a chunk of 32 EXECUTEs, then forgotten; a request",
        build: flow::execute,
    },
    Entry {
        name: "request/batch",
        about: "a chunk of 32 BATCHes of 4 prepared children, then forgotten; a request",
        build: flow::batch,
    },
    Entry {
        name: "response/rows",
        about: "a chunk of 32 RESULTs with a row, their requests put in place before; a response",
        build: flow::rows,
    },
    Entry {
        name: "response/void",
        about: "a chunk of 32 empty RESULTs, their requests put in place before; a response",
        build: flow::void,
    },
    Entry {
        name: "response/error",
        about: "a chunk of 32 ERRORs, their requests put in place before; a response",
        build: flow::error,
    },
    Entry {
        name: "enrich/execute-v4",
        about: "an EXECUTE and its row, counted as the agent does; an operation",
        build: enrich::execute_v4,
    },
    Entry {
        name: "enrich/execute-v5",
        about: "the same in v5, a segment each; an operation",
        build: enrich::execute_v5,
    },
    Entry {
        name: "enrich/query-v4",
        about: "a QUERY and its row, counted as the agent does; an operation",
        build: enrich::query_v4,
    },
    Entry {
        name: "enrich/pipelined-v4",
        about: "32 EXECUTEs in a chunk and their rows in another; an operation",
        build: enrich::pipelined_v4,
    },
    Entry {
        name: "enrich/many-tables-v4",
        about: "EXECUTEs of 64 tables in turn, more than a flow has at hand; an operation",
        build: enrich::many_tables_v4,
    },
    Entry {
        name: "enrich/large-rows-v4",
        about: "an EXECUTE and 256 KiB of rows in chunks of 64 KiB; an operation",
        build: enrich::large_rows_v4,
    },
    Entry {
        name: "enrich/execute-with-stats-v4",
        about: "an EXECUTE and its row under a rule with `stats`; an operation",
        build: enrich::execute_with_stats_v4,
    },
    Entry {
        name: "enrich/query-with-stats-v4",
        about: "a QUERY and its row under a rule with `stats`; an operation",
        build: enrich::query_with_stats_v4,
    },
];

/// The case of this name.
pub fn find(name: &str) -> Option<&'static Entry> {
    ENTRIES.iter().find(|entry| entry.name == name)
}
