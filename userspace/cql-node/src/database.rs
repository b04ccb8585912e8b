//! The database of one node: what exists, and the statements that change it.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use tokio::sync::{broadcast, watch};

use super::ast::{SchemaStatement, Statement, TableName};
use super::clients::Clients;
use super::failure::{Failure, Result};
use super::parse::parse;
use super::response::SchemaChange;
use super::ring::Ring;
use super::schema::{Keyspace, TableDef, uuid_of};
use super::scylla::Scylla;
use super::statements::Statements;
use super::store::{Memory, Table};
use super::system::{PEERS_V2, System};
use super::system_table::SystemTable;

/// Schema changes a slow listener may be behind before it misses some.
const EVENT_BACKLOG: usize = 64;

/// All state of a node but its connections. One thread owns it.
#[derive(Debug)]
pub(super) struct Database {
    pub(super) keyspaces: BTreeMap<String, Keyspace>,
    pub(super) system: System,
    pub(super) statements: Statements,
    pub(super) events: broadcast::Sender<SchemaChange>,
    pub(super) clients: Arc<Clients>,
    pub(super) addr: SocketAddr,
    pub(super) max_version: u8,
    pub(super) memory: Rc<Memory>,
    pub(super) rings: watch::Receiver<Vec<SocketAddr>>,
    pub(super) scylla: Option<Scylla>,
    schema_changes: u64,
}

impl Database {
    pub(super) fn new(
        addr: SocketAddr,
        max_version: u8,
        max_bytes: usize,
        clients: Arc<Clients>,
    ) -> Result<Self> {
        let memory = Rc::new(Memory {
            used: Cell::new(0),
            max: max_bytes,
        });
        Ok(Self {
            keyspaces: BTreeMap::new(),
            system: System::new(&memory)?,
            statements: Statements::default(),
            events: broadcast::channel(EVENT_BACKLOG).0,
            clients,
            addr,
            max_version,
            memory,
            rings: watch::channel(Vec::new()).1,
            scylla: None,
            schema_changes: 0,
        })
    }

    /// The ring of now.
    pub(super) fn ring(&self) -> Ring {
        Ring::new(self.addr, self.rings.borrow().clone())
    }

    /// The rings to come.
    pub(super) fn told_rings(&self) -> watch::Receiver<Vec<SocketAddr>> {
        let mut rings = self.rings.clone();
        rings.mark_unchanged();
        rings
    }

    /// Carries out the text of a schema statement.
    pub(super) fn make(&mut self, text: &str) -> Result<()> {
        match parse(text)? {
            Statement::Schema(statement) => self.change_schema(&statement, None).map(drop),
            _ => Err(Failure::invalid("this changes no schema")),
        }
    }

    /// Another one after each schema change: drivers compare it between nodes.
    pub(super) fn schema_version(&self) -> [u8; 16] {
        uuid_of(&[b"schema", &self.schema_changes.to_be_bytes()])
    }

    pub(super) fn has_keyspace(&self, name: &str) -> bool {
        self.keyspaces.contains_key(name) || self.system.has_keyspace(name)
    }

    /// The table a statement names; for a system table with what makes up its rows.
    pub(super) fn table(
        &self,
        name: &TableName,
        current: Option<&str>,
    ) -> Result<(Rc<Table>, Option<SystemTable>)> {
        let keyspace = keyspace_of(name, current)?;
        let is_hidden = self.scylla.is_none() && name.table.starts_with("scylla_");
        if let Some((table, kind)) = self
            .system
            .table(keyspace, &name.table)
            .filter(|_| !is_hidden)
        {
            return Ok((Rc::clone(table), Some(kind)));
        }
        if !self.has_keyspace(keyspace) {
            return Err(Failure::invalid(format!(
                "keyspace {keyspace} does not exist"
            )));
        }
        let table = self
            .keyspaces
            .get(keyspace)
            .and_then(|k| k.tables.get(&name.table));
        let table = table.ok_or_else(|| {
            // In the words of the versions that do not have it.
            Failure::invalid(match name.table.as_str() {
                PEERS_V2 => format!("unconfigured table {PEERS_V2}"),
                other => format!("table {other} does not exist"),
            })
        })?;
        Ok((Rc::clone(table), None))
    }

    /// Carries out a schema statement; `None` when there was nothing to do.
    pub(super) fn change_schema(
        &mut self,
        statement: &SchemaStatement,
        current: Option<&str>,
    ) -> Result<Option<SchemaChange>> {
        let change = match statement {
            SchemaStatement::CreateKeyspace {
                name,
                if_not_exists,
                replication,
                durable_writes,
            } => {
                let keyspace = Keyspace {
                    name: name.clone(),
                    replication: replication.clone(),
                    durable_writes: *durable_writes,
                    tables: BTreeMap::new(),
                };
                self.create_keyspace(keyspace, *if_not_exists)?
            }
            SchemaStatement::CreateTable {
                name,
                if_not_exists,
                columns,
                comment,
            } => {
                let keyspace = self.writable_keyspace(name, current)?;
                let def = TableDef::new(
                    &keyspace.name,
                    &name.table,
                    columns.clone(),
                    comment.clone(),
                );
                self.create_table(def, *if_not_exists)?
            }
            SchemaStatement::DropKeyspace { name, if_exists } => {
                self.drop_keyspace(name, *if_exists)?
            }
            SchemaStatement::DropTable { name, if_exists } => {
                self.drop_table(name, current, *if_exists)?
            }
            SchemaStatement::Truncate(name) => {
                self.writable_keyspace(name, current)?;
                self.table(name, current)?.0.clear();
                None
            }
        };
        if let Some(change) = &change {
            self.schema_changes += 1;
            self.statements
                .forget(&change.keyspace, change.table.as_deref());
            // Fails when nobody listens, which is fine.
            let _ = self.events.send(change.clone());
        }
        Ok(change)
    }

    fn create_keyspace(
        &mut self,
        keyspace: Keyspace,
        if_not_exists: bool,
    ) -> Result<Option<SchemaChange>> {
        let name = keyspace.name.clone();
        if self.has_keyspace(&name) {
            return if if_not_exists {
                Ok(None)
            } else {
                Err(Failure::already_exists(&name, ""))
            };
        }
        self.keyspaces.insert(name.clone(), keyspace);
        Ok(Some(SchemaChange {
            change: "CREATED",
            keyspace: name,
            table: None,
        }))
    }

    fn create_table(&mut self, def: TableDef, if_not_exists: bool) -> Result<Option<SchemaChange>> {
        let memory = Rc::clone(&self.memory);
        let Some(keyspace) = self.keyspaces.get_mut(&def.keyspace) else {
            return Ok(None);
        };
        if keyspace.tables.contains_key(&def.name) {
            let exists = Failure::already_exists(&def.keyspace, &def.name);
            return if if_not_exists { Ok(None) } else { Err(exists) };
        }
        let change = SchemaChange {
            change: "CREATED",
            keyspace: def.keyspace.clone(),
            table: Some(def.name.clone()),
        };
        keyspace
            .tables
            .insert(def.name.clone(), Rc::new(Table::new(def, memory)));
        Ok(Some(change))
    }

    fn drop_keyspace(&mut self, name: &str, if_exists: bool) -> Result<Option<SchemaChange>> {
        refuse_system(&self.system, name)?;
        match self.keyspaces.remove(name) {
            Some(_) => Ok(Some(SchemaChange {
                change: "DROPPED",
                keyspace: name.to_owned(),
                table: None,
            })),
            None if if_exists => Ok(None),
            None => Err(Failure::invalid(format!("Keyspace '{name}' doesn't exist"))),
        }
    }

    fn drop_table(
        &mut self,
        name: &TableName,
        current: Option<&str>,
        if_exists: bool,
    ) -> Result<Option<SchemaChange>> {
        let keyspace = keyspace_of(name, current)?.to_owned();
        refuse_system(&self.system, &keyspace)?;
        match self
            .keyspaces
            .get_mut(&keyspace)
            .and_then(|k| k.tables.remove(&name.table))
        {
            Some(_) => Ok(Some(SchemaChange {
                change: "DROPPED",
                keyspace,
                table: Some(name.table.clone()),
            })),
            None if if_exists => Ok(None),
            None => Err(Failure::invalid(format!(
                "Table '{keyspace}.{}' doesn't exist",
                name.table
            ))),
        }
    }

    fn writable_keyspace(&self, name: &TableName, current: Option<&str>) -> Result<&Keyspace> {
        let keyspace = keyspace_of(name, current)?;
        refuse_system(&self.system, keyspace)?;
        self.keyspaces
            .get(keyspace)
            .ok_or_else(|| Failure::invalid(format!("Keyspace '{keyspace}' doesn't exist")))
    }
}

fn refuse_system(system: &System, keyspace: &str) -> Result<()> {
    if system.has_keyspace(keyspace) {
        return Err(Failure::unauthorized(format!(
            "{keyspace} keyspace is not user-modifiable."
        )));
    }
    Ok(())
}

fn keyspace_of<'a>(name: &'a TableName, current: Option<&'a str>) -> Result<&'a str> {
    name.keyspace.as_deref().or(current).ok_or_else(|| {
        Failure::invalid(
            "No keyspace has been specified. USE a keyspace, or explicitly specify keyspace.tablename",
        )
    })
}
