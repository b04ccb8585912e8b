//! The tables that statements are about.

/// A type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Type {
    Int,
    Text,
    Double,
    Blob,
    Uuid,
    Timestamp,
    /// `map<text, int>`.
    Map,
    /// `list<int>`.
    List,
    /// `set<text>`.
    Set,
    /// `frozen<place>`.
    Place,
    /// `tuple<int, text>`.
    Tuple,
    /// `vector<float, 3>`.
    Vector,
    Counter,
}

/// A column.
#[derive(Debug)]
pub(crate) struct Column {
    /// The name, as its table knows it, without quotes.
    pub(crate) name: &'static str,
    pub(crate) kind: Type,
}

/// A table. The columns of its key come first.
#[derive(Debug)]
pub struct Table {
    /// The name, as the keyspace knows it, without quotes.
    pub name: &'static str,
    /// How many columns are its partition's key, and its whole key.
    pub(crate) partition: usize,
    pub(crate) key: usize,
    pub(crate) columns: &'static [Column],
    create: &'static str,
}

impl Table {
    pub(crate) fn key(&self) -> &'static [Column] {
        self.columns.get(..self.key).unwrap_or_default()
    }

    pub(crate) fn others(&self) -> &'static [Column] {
        self.columns.get(self.key..).unwrap_or_default()
    }

    pub(crate) fn is_counter(&self) -> bool {
        self.columns
            .iter()
            .any(|column| column.kind == Type::Counter)
    }
}

const fn column(name: &'static str, kind: Type) -> Column {
    Column { name, kind }
}

/// The tables of the schema.
pub const TABLES: [Table; 5] = [
    Table {
        name: "plain",
        partition: 1,
        key: 2,
        columns: &[
            column("k", Type::Int),
            column("c", Type::Int),
            column("v", Type::Text),
            column("w", Type::Int),
            column("Mixed Case", Type::Text),
            column("say \"so\"", Type::Int),
            column("j", Type::Map),
            column("l", Type::List),
            column("s", Type::Set),
            column("u", Type::Place),
            column("t", Type::Tuple),
            column("b", Type::Blob),
            column("d", Type::Double),
            column("at", Type::Timestamp),
            column("id", Type::Uuid),
        ],
        create: "plain (k int, c int, v text, w int, \"Mixed Case\" text, \"say \"\"so\"\"\" int, j map<text, int>, \
                 l list<int>, s set<text>, u frozen<place>, t tuple<int, text>, b blob, d double, at timestamp, id uuid, \
                 PRIMARY KEY (k, c))",
    },
    Table {
        name: "QuotedT",
        partition: 1,
        key: 2,
        columns: &[
            column("K", Type::Text),
            column("from", Type::Int),
            column("select", Type::Text),
            column("v", Type::Int),
        ],
        create: "\"QuotedT\" (\"K\" text, \"from\" int, \"select\" text, v int, PRIMARY KEY (\"K\", \"from\")) \
                 WITH CLUSTERING ORDER BY (\"from\" DESC)",
    },
    Table {
        name: "counts",
        partition: 1,
        key: 2,
        columns: &[
            column("k", Type::Int),
            column("c", Type::Int),
            column("n", Type::Counter),
            column("m", Type::Counter),
        ],
        create: "counts (k int, c int, n counter, m counter, PRIMARY KEY (k, c))",
    },
    Table {
        name: "near",
        partition: 1,
        key: 1,
        columns: &[
            column("k", Type::Int),
            column("e", Type::Vector),
            column("v", Type::Text),
        ],
        create: "near (k int PRIMARY KEY, e vector<float, 3>, v text)",
    },
    Table {
        name: "two",
        partition: 2,
        key: 4,
        columns: &[
            column("a", Type::Int),
            column("b", Type::Text),
            column("c", Type::Int),
            column("d", Type::Text),
            column("v", Type::Int),
        ],
        create: "two (a int, b text, c int, d text, v int, PRIMARY KEY ((a, b), c, d))",
    },
];

/// The statements that make the schema in a keyspace, the keyspace itself included.
pub fn schema(keyspace: &str) -> Vec<String> {
    let strategy = "{'class': 'SimpleStrategy', 'replication_factor': 1}";
    let mut all = vec![
        format!("CREATE KEYSPACE {keyspace} WITH replication = {strategy}"),
        format!("CREATE TYPE {keyspace}.place (street text, zip int, \"Tags\" frozen<set<text>>)"),
    ];
    all.extend(
        TABLES
            .iter()
            .map(|table| format!("CREATE TABLE {keyspace}.{}", table.create)),
    );
    all.push(format!(
        "CREATE INDEX near_e ON {keyspace}.near (e) USING 'sai'"
    ));
    all
}
