//! Parsing of CREATE, DROP and DESCRIBE.

use std::collections::BTreeMap;

use super::ast::{Describe, SchemaStatement, Term};
use super::failure::{Failure, Result};
use super::parse::{MAX_DEPTH, Parser};
use super::schema::{Column, ColumnKind};
use super::types::{CqlType, Native};

impl Parser {
    pub(super) fn create(&mut self) -> Result<SchemaStatement> {
        match self.word()?.as_str() {
            "keyspace" | "schema" => self.create_keyspace(),
            "table" | "columnfamily" => self.create_table(),
            other => Err(unsupported("CREATE", other)),
        }
    }

    fn if_not_exists(&mut self) -> Result<bool> {
        if !self.accept_word("if") {
            return Ok(false);
        }
        self.expect_word("not")?;
        self.expect_word("exists")?;
        Ok(true)
    }

    fn create_keyspace(&mut self) -> Result<SchemaStatement> {
        let if_not_exists = self.if_not_exists()?;
        let name = self.name()?;
        let mut replication = None;
        let mut durable_writes = true;
        self.expect_word("with")?;
        loop {
            let option = self.name()?;
            self.expect("=")?;
            match (option.as_str(), self.term()?) {
                ("replication", Term::Map(pairs)) => replication = Some(text_map(pairs)?),
                ("durable_writes", Term::Bool(b)) => durable_writes = b,
                ("replication" | "durable_writes", _) => {
                    return Err(Failure::syntax(format!("wrong kind of value for {option}")));
                }
                _ => return Err(Failure::syntax(format!("Unknown property '{option}'"))),
            }
            if !self.accept_word("and") {
                break;
            }
        }
        let replication = replication
            .filter(|r| r.contains_key("class"))
            .ok_or_else(|| Failure::invalid("Missing mandatory replication strategy class"))?;
        Ok(SchemaStatement::CreateKeyspace {
            name,
            if_not_exists,
            replication,
            durable_writes,
        })
    }

    fn create_table(&mut self) -> Result<SchemaStatement> {
        let if_not_exists = self.if_not_exists()?;
        let name = self.table_name()?;
        let mut columns = Vec::new();
        let mut key = None;
        self.expect("(")?;
        loop {
            if self.accept_word("primary") {
                self.expect_word("key")?;
                if key.replace(self.primary_key()?).is_some() {
                    return Err(Failure::invalid(
                        "Multiple PRIMARY KEYs specified (exactly one required)",
                    ));
                }
            } else {
                let column = self.name()?;
                let cql_type = self.cql_type(0)?;
                if self.accept_word("static") {
                    return Err(Failure::invalid(
                        "static columns are not supported by this node",
                    ));
                }
                if self.accept_word("primary") {
                    self.expect_word("key")?;
                    if key.replace((vec![column.clone()], Vec::new())).is_some() {
                        return Err(Failure::invalid(
                            "Multiple PRIMARY KEYs specified (exactly one required)",
                        ));
                    }
                }
                columns.push((column, cql_type));
            }
            if self.accept(")") {
                break;
            }
            self.expect(",")?;
        }
        let (partition, clustering) =
            key.ok_or_else(|| Failure::invalid("No PRIMARY KEY specified (exactly one required)"))?;
        let (order, comment) = self.table_options()?;
        let columns = arrange(columns, &partition, &clustering, &order)?;
        Ok(SchemaStatement::CreateTable {
            name,
            if_not_exists,
            columns,
            comment,
        })
    }

    /// `(a, c)` or `((a, b), c)`: the partition key and the clustering key.
    fn primary_key(&mut self) -> Result<(Vec<String>, Vec<String>)> {
        self.expect("(")?;
        let partition = if self.accept("(") {
            self.names_until(")")?
        } else {
            vec![self.name()?]
        };
        let clustering = if self.accept(",") {
            self.names_until(")")?
        } else {
            self.expect(")")?;
            Vec::new()
        };
        Ok((partition, clustering))
    }

    pub(super) fn names_until(&mut self, close: &str) -> Result<Vec<String>> {
        let mut names = vec![self.name()?];
        while !self.accept(close) {
            self.expect(",")?;
            names.push(self.name()?);
        }
        Ok(names)
    }

    /// `WITH CLUSTERING ORDER BY (…) AND comment = '…'`; other properties are read and dropped.
    fn table_options(&mut self) -> Result<(Vec<(String, bool)>, String)> {
        let mut order = Vec::new();
        let mut comment = String::new();
        if !self.accept_word("with") {
            return Ok((order, comment));
        }
        loop {
            let option = self.name()?;
            if option == "clustering" && self.accept_word("order") {
                self.expect_word("by")?;
                self.expect("(")?;
                order = self.ordering()?;
                self.expect(")")?;
            } else if option == "compact" && self.accept_word("storage") {
                return Err(Failure::invalid("COMPACT STORAGE tables are not allowed"));
            } else {
                self.expect("=")?;
                match self.term()? {
                    Term::Text(s) if option == "comment" => comment = s,
                    _ => {}
                }
            }
            if !self.accept_word("and") {
                return Ok((order, comment));
            }
        }
    }

    /// `a ASC, b DESC`: each name and whether it is descending.
    pub(super) fn ordering(&mut self) -> Result<Vec<(String, bool)>> {
        let mut order = Vec::new();
        loop {
            let column = self.name()?;
            let descending = self.accept_word("desc");
            if !descending {
                self.accept_word("asc");
            }
            order.push((column, descending));
            if !self.accept(",") {
                return Ok(order);
            }
        }
    }

    fn cql_type(&mut self, depth: usize) -> Result<CqlType> {
        if depth > MAX_DEPTH {
            return Err(Failure::syntax("types are nested too deeply"));
        }
        let name = self.word()?;
        if let Some(native) = Native::from_name(&name) {
            return Ok(CqlType::Native(native));
        }
        if !matches!(name.as_str(), "list" | "set" | "map" | "tuple" | "frozen") {
            return Err(Failure::invalid(format!("Unknown type {name}")));
        }
        self.expect("<")?;
        let mut inner = vec![self.cql_type(depth + 1)?];
        while self.accept(",") {
            inner.push(self.cql_type(depth + 1)?);
        }
        self.expect(">")?;
        if name == "tuple" {
            return Ok(CqlType::Tuple(inner));
        }
        let mut inner = inner.into_iter().map(Box::new);
        match (name.as_str(), inner.next(), inner.next(), inner.next()) {
            ("list", Some(e), None, None) => Ok(CqlType::List(e)),
            ("set", Some(e), None, None) => Ok(CqlType::Set(e)),
            ("frozen", Some(e), None, None) => Ok(CqlType::Frozen(e)),
            ("map", Some(k), Some(v), None) => Ok(CqlType::Map(k, v)),
            _ => Err(Failure::syntax(format!(
                "wrong number of types inside {name}<>"
            ))),
        }
    }

    pub(super) fn drop_statement(&mut self) -> Result<SchemaStatement> {
        let what = self.word()?;
        if !matches!(
            what.as_str(),
            "keyspace" | "schema" | "table" | "columnfamily"
        ) {
            return Err(unsupported("DROP", &what));
        }
        let if_exists = self.accept_word("if");
        if if_exists {
            self.expect_word("exists")?;
        }
        if matches!(what.as_str(), "keyspace" | "schema") {
            return Ok(SchemaStatement::DropKeyspace {
                name: self.name()?,
                if_exists,
            });
        }
        Ok(SchemaStatement::DropTable {
            name: self.table_name()?,
            if_exists,
        })
    }

    pub(super) fn describe(&mut self) -> Result<Describe> {
        let described = if self.accept_word("full") {
            self.expect_word("schema")?;
            Describe::Schema
        } else if self.accept_last_word("cluster") {
            Describe::Cluster
        } else if self.accept_last_word("schema") {
            Describe::Schema
        } else if self.accept_last_word("keyspaces") {
            Describe::Keyspaces
        } else if self.accept_last_word("tables") {
            Describe::Tables
        } else if ["types", "functions", "aggregates"]
            .iter()
            .any(|w| self.accept_last_word(w))
        {
            Describe::Nothing
        } else if self.accept_last_word("keyspace") {
            Describe::Keyspace(None)
        } else if self.accept_word("only") || self.accept_word("keyspace") {
            self.accept_word("keyspace");
            Describe::Keyspace(Some(self.name()?))
        } else if self.accept_word("table") || self.accept_word("columnfamily") {
            Describe::Table(self.table_name()?)
        } else {
            Describe::Anything(self.table_name()?)
        };
        if self.accept_word("with") {
            self.expect_word("internals")?;
        }
        Ok(described)
    }
}

fn unsupported(verb: &str, what: &str) -> Failure {
    Failure::invalid(format!(
        "{verb} {} is not supported by this node",
        what.to_ascii_uppercase()
    ))
}

fn text_map(pairs: Vec<(Term, Term)>) -> Result<BTreeMap<String, String>> {
    let text = |t| match t {
        Term::Text(s) | Term::Number(s) => Ok(s),
        _ => Err(Failure::syntax("replication options are strings")),
    };
    pairs
        .into_iter()
        .map(|(k, v)| Ok((text(k)?, text(v)?)))
        .collect()
}

/// Puts the key columns first, in key order, and checks the definition.
fn arrange(
    declared: Vec<(String, CqlType)>,
    partition: &[String],
    clustering: &[String],
    order: &[(String, bool)],
) -> Result<Vec<Column>> {
    if let Some((name, _)) = order.iter().find(|(name, _)| !clustering.contains(name)) {
        return Err(Failure::invalid(format!(
            "Missing or wrong CLUSTERING ORDER for column {name}"
        )));
    }
    let mut rest: BTreeMap<String, CqlType> = BTreeMap::new();
    for (name, cql_type) in declared {
        if let Some(twice) = rest.insert(name.clone(), cql_type).map(|_| name) {
            return Err(Failure::invalid(format!(
                "Duplicate column '{twice}' declaration"
            )));
        }
    }
    let mut columns = Vec::new();
    for (i, name) in partition.iter().chain(clustering).enumerate() {
        let cql_type = rest.remove(name).ok_or_else(|| {
            Failure::invalid(format!(
                "Unknown or repeated column '{name}' in PRIMARY KEY"
            ))
        })?;
        let allowed = match &cql_type {
            CqlType::Native(n) => !matches!(n, Native::Counter | Native::Duration),
            CqlType::List(_) | CqlType::Set(_) | CqlType::Map(..) => false,
            CqlType::Tuple(_) | CqlType::Frozen(_) => true,
        };
        if !allowed {
            return Err(Failure::invalid(format!(
                "Invalid type {cql_type} for PRIMARY KEY column '{name}'"
            )));
        }
        let kind = if i < partition.len() {
            ColumnKind::Partition
        } else {
            ColumnKind::Clustering {
                descending: order.iter().any(|(n, descending)| n == name && *descending),
            }
        };
        columns.push(Column {
            name: name.clone(),
            cql_type,
            kind,
        });
    }
    columns.extend(rest.into_iter().map(|(name, cql_type)| Column {
        name,
        cql_type,
        kind: ColumnKind::Regular,
    }));
    Ok(columns)
}
