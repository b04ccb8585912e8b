//! The way from a file to a checked [`Workload`].

use std::{collections::BTreeMap, collections::BTreeSet, fs, path::Path};

use anyhow::{Context, ensure};
use report::schema::{Origin, Published};
use serde::Deserialize;

use super::{
    Client, Database, Distribution, Job, Keys, Operation, Protocol, Topology, Variant, Workload,
    check, one,
};

/// All workloads of a folder (`*.toml`), by name.
///
/// # Errors
/// When a file cannot be read or is wrong, when two variants have one id, or there is none.
pub fn read(folder: &Path) -> anyhow::Result<Vec<Workload>> {
    let entries = fs::read_dir(folder);
    let entries = entries.with_context(|| format!("no folder {}", folder.display()))?;
    let mut paths = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some_and(|ending| ending == "toml") {
            paths.push(path);
        }
    }
    ensure!(!paths.is_empty(), "no workload in {}", folder.display());
    paths.sort();
    let workloads: Vec<Workload> = paths
        .iter()
        .map(|p| read_file(p))
        .collect::<Result<_, _>>()?;
    let mut ids = BTreeSet::new();
    for workload in &workloads {
        for variant in &workload.variants {
            let is_new = ids.insert(&*variant.id);
            ensure!(
                is_new,
                "{}.toml: {} is there twice",
                workload.name,
                variant.id
            );
        }
    }
    Ok(workloads)
}

/// The workload of one file.
///
/// # Errors
/// When it cannot be read or is wrong: says what is.
pub fn read_file(path: &Path) -> anyhow::Result<Workload> {
    let read = || {
        let name = path.file_stem().and_then(|name| name.to_str());
        let name = name.context("a file without a name")?;
        parse(name, &fs::read_to_string(path)?)
    };
    read().with_context(|| path.display().to_string())
}

/// A workload of this name from the text of its file.
///
/// # Errors
/// The text is wrong: says what is.
pub fn parse(name: &str, text: &str) -> anyhow::Result<Workload> {
    let file: File = toml::from_str(text)?;
    file.checked(name)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    title: String,
    database: Database,
    protocol: Protocol,
    client: Client,
    threads: usize,
    connections: usize,
    #[serde(default = "one")]
    depth: usize,
    #[serde(default)]
    nonblocking: bool,
    rate: Option<f64>,
    #[serde(default = "one")]
    nodes: usize,
    #[serde(default)]
    topology: Topology,
    #[serde(default)]
    paths: Vec<String>,
    #[serde(default)]
    quick: bool,
    #[serde(default)]
    create: Vec<String>,
    #[serde(default)]
    clear: Vec<String>,
    fill: Option<String>,
    origin: Origin,
    keys: Keys,
    operation: Vec<Operation>,
    #[serde(default)]
    published: Vec<Published>,
    #[serde(default)]
    variant: Vec<Changes>,
}

/// The part of a variant that differs from the file's.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Changes {
    #[serde(default)]
    name: String,
    database: Option<Database>,
    client: Option<Client>,
    threads: Option<usize>,
    connections: Option<usize>,
    depth: Option<usize>,
    nonblocking: Option<bool>,
    rate: Option<f64>,
    nodes: Option<usize>,
    quick: Option<bool>,
    #[serde(default)]
    operation: BTreeMap<String, OperationChanges>,
    #[serde(default)]
    keys: KeysChanges,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OperationChanges {
    weight: Option<u32>,
    connections: Option<usize>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeysChanges {
    count: Option<u64>,
    distribution: Option<Distribution>,
}

impl File {
    fn checked(self, name: &str) -> anyhow::Result<Workload> {
        check::name(name)?;
        let variants = if self.variant.is_empty() {
            vec![self.variant(name.to_owned(), &Changes::default())?]
        } else {
            let made = self.variant.iter().map(|changes| {
                let in_variant = || format!("variant {:?}", changes.name);
                // A variant without a name is the workload itself.
                let id = if changes.name.is_empty() {
                    name.to_owned()
                } else {
                    check::name(&changes.name)?;
                    format!("{name}-{}", changes.name)
                };
                self.variant(id, changes).with_context(in_variant)
            });
            made.collect::<anyhow::Result<_>>()?
        };
        let mut names = BTreeSet::new();
        for changes in &self.variant {
            let is_new = names.insert(&*changes.name);
            ensure!(is_new, "variant {:?} is there twice", changes.name);
        }
        for published in &self.published {
            if let Some(of) = &published.variant {
                ensure!(
                    names.contains(&**of),
                    "published: there is no variant {of:?}"
                );
            }
        }
        Ok(Workload {
            name: name.to_owned(),
            title: self.title,
            origin: self.origin,
            published: self.published,
            variants,
        })
    }

    fn variant(&self, id: String, changes: &Changes) -> anyhow::Result<Variant> {
        for name in changes.operation.keys() {
            let is_known = self.operation.iter().any(|o| o.name == *name);
            ensure!(is_known, "there is no operation {name:?} to change");
        }
        let fill = self.fill.as_deref();
        let changed = self.operation.iter().map(|operation| {
            let mut operation = operation.clone();
            if let Some(changes) = changes.operation.get(&operation.name) {
                operation.weight = changes.weight.unwrap_or(operation.weight);
                operation.connections = changes.connections.unwrap_or(operation.connections);
            }
            operation
        });
        // Two of one name are not hidden by one of them being idle: `check::job` is to see them.
        let kept = changed.filter(|o| {
            let is_twice = self.operation.iter().filter(|p| p.name == o.name).count() > 1;
            o.is_active() || fill == Some(&*o.name) || is_twice
        });
        let keys = Keys {
            count: changes.keys.count.unwrap_or(self.keys.count),
            distribution: changes.keys.distribution.unwrap_or(self.keys.distribution),
        };
        let variant = Variant {
            id,
            database: changes.database.unwrap_or(self.database),
            nodes: changes.nodes.unwrap_or(self.nodes),
            topology: self.topology,
            paths: self.paths.clone(),
            quick: changes.quick.unwrap_or(self.quick),
            job: Job {
                protocol: self.protocol,
                client: changes.client.unwrap_or(self.client),
                threads: changes.threads.unwrap_or(self.threads),
                connections: changes.connections.unwrap_or(self.connections),
                depth: changes.depth.unwrap_or(self.depth),
                nonblocking: changes.nonblocking.unwrap_or(self.nonblocking),
                rate: changes.rate.or(self.rate),
                keys,
                create: self.create.clone(),
                clear: self.clear.clone(),
                fill: self.fill.clone(),
                operations: kept.collect(),
            },
        };
        check::variant(&variant)?;
        Ok(variant)
    }
}
