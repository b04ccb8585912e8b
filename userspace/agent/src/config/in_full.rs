//! A policy in full: its files as one, with every default filled in, in a form that `check` accepts and that means the same.
//!
//! Defaults are those of the schema, and the few that depend on other settings or on this host ([`fill_dependent`]).
//! Comments are left out, and log-ins and queries of URLs are masked, for there may be secrets in them. The paths of files with
//! secrets stay.

use serde_json::{Map, Value as Json};
use toml::{Table, Value};

use super::{Config, Sources, bounds::DEFAULT_HELD_OUT, schema::schema};

/// The text in place of what is masked in a URL. A URL with it is one.
const MASK: &str = "masked";

/// Lists. Further files add to most of them.
const LISTS: [&str; 4] = ["rule", "incoming", "xdp", "cluster"];

/// The keys of `[agent]` that are read again with the rules; all others are when the agent starts.
const READ_AGAIN: [&str; 1] = ["holdout"];

/// The policy in force: what its files say, and what the agent made of them.
#[derive(Clone, Debug)]
pub struct InForce {
    /// The files when the agent began. What is read only then is theirs.
    pub began: Sources,
    /// The files that were put into force last.
    pub sources: Sources,
    /// The meaning of these files.
    pub config: Config,
}

impl InForce {
    /// The policy of files that no agent has.
    pub fn of(sources: Sources, config: Config) -> Self {
        Self {
            began: sources.clone(),
            sources,
            config,
        }
    }

    /// The policy in full, as TOML.
    pub fn in_full(&self) -> String {
        self.by(&schema())
    }

    pub(super) fn by(&self, schema: &Json) -> String {
        let mut whole = one(&self.sources);
        keep_what_began(&mut whole, one(&self.began));
        for name in ["agent", "log", "default", "health", "containers"] {
            whole
                .entry(name)
                .or_insert_with(|| Value::Table(Table::new()));
        }
        fill_table(&mut whole, schema);
        fill_dependent(&mut whole, &self.config);
        mask(&mut whole);
        let note = match self.config.is_dry {
            true => "# The agent runs dry: the rules match and count, and do nothing.\n\n",
            false => "",
        };
        format!("{note}{}", written(&whole))
    }
}

/// The files as one table.
fn one(sources: &Sources) -> Table {
    // They have been parsed before.
    let mut tables = sources
        .texts()
        .map(|(_, text)| text.parse::<Table>().unwrap_or_default());
    let mut whole = tables.next().unwrap_or_default();
    for mut further in tables {
        for list in LISTS {
            let Some(Value::Array(items)) = further.remove(list) else {
                continue;
            };
            let all = whole.entry(list).or_insert_with(|| Value::Array(vec![]));
            if let Value::Array(all) = all {
                all.extend(items);
            }
        }
    }
    whole
}

/// Puts what is read only when the agent starts as it was then.
fn keep_what_began(whole: &mut Table, mut began: Table) {
    let mut agent = table_of(began.remove("agent"));
    let mut again = table_of(whole.remove("agent"));
    for key in READ_AGAIN {
        agent.remove(key);
        agent.extend(again.remove_entry(key));
    }
    whole.insert("agent".to_owned(), Value::Table(agent));
    for list in ["containers", "incoming", "limits", "policy"] {
        whole.remove(list);
        whole.extend(began.remove_entry(list));
    }
    let format = table_of(began.remove("log")).remove_entry("format");
    let mut log = table_of(whole.remove("log"));
    log.remove("format");
    log.extend(format);
    whole.insert("log".to_owned(), Value::Table(log));
}

fn table_of(value: Option<Value>) -> Table {
    match value {
        Some(Value::Table(table)) => table,
        _ => Table::new(),
    }
}

/// Fills in the schema's defaults, in a table and in everything beneath it.
fn fill(value: &mut Value, schema: &Json) {
    match value {
        Value::Table(table) => fill_table(table, one_of(table, schema)),
        Value::Array(items) => {
            let schema = schema.get("items").unwrap_or(&Json::Null);
            items.iter_mut().for_each(|item| fill(item, schema));
        }
        _ => {}
    }
}

fn fill_table(table: &mut Table, schema: &Json) {
    let each = schema.get("additionalProperties").unwrap_or(&Json::Null);
    let keys = schema.get("properties").and_then(Json::as_object);
    let missing = keys.map(|keys| missing(table, keys)).unwrap_or_default();
    table.extend(missing);
    for (key, value) in table.iter_mut() {
        fill(value, keys.and_then(|keys| keys.get(key)).unwrap_or(each));
    }
}

/// The schema of a table, of those that there are where it stands: of steps it is the one with its name.
fn one_of<'a>(table: &Table, schema: &'a Json) -> &'a Json {
    let choices = |key| schema.get(key).and_then(Json::as_array);
    let is_meant = |choice: &&Json| match choice.pointer("/properties/transform/const") {
        Some(name) => table.get("transform").and_then(Value::as_str) == name.as_str(),
        None => choice.get("properties").is_some(),
    };
    let choices = choices("oneOf").or_else(|| choices("anyOf"));
    choices
        .and_then(|choices| choices.iter().find(is_meant))
        .unwrap_or(schema)
}

/// The keys that a table lacks and that have a default, where it means something.
fn missing(table: &Table, keys: &Map<String, Json>) -> Table {
    let means_something = |property: &Json| match property.get("x-beside").and_then(Json::as_str) {
        Some(beside) => !matches!(table.get(beside), None | Some(Value::Boolean(false))),
        None => true,
    };
    let lacking = keys
        .iter()
        .filter(|(key, property)| !table.contains_key(*key) && means_something(property));
    let defaults = lacking.filter_map(|(key, property)| {
        let default = property.get("default")?;
        let is_empty = match default {
            Json::Array(items) => items.is_empty(),
            Json::Object(_) => true,
            _ => false,
        };
        let value = Value::try_from(default).ok().filter(|_| !is_empty)?;
        Some((key.clone(), value))
    });
    defaults.collect()
}

/// Fills in what depends: on this host, on other keys, on what a rule is.
fn fill_dependent(whole: &mut Table, config: &Config) {
    let mut usual = Value::String(format!("{}%", DEFAULT_HELD_OUT * 100.0));
    if let Some(Value::Table(agent)) = whole.get_mut("agent") {
        let workers = || Value::Integer(config.workers as i64);
        agent.entry("workers").or_insert_with(workers);
        if let Some(said) = agent.get("holdout") {
            usual = said.clone();
        }
    }
    if let Some(Value::Table(log)) = whole.get_mut("log") {
        let format = || Value::String(config.log_format.as_str().to_owned());
        log.entry("format").or_insert_with(format);
    }
    if let Some(Value::Table(health)) = whole.get_mut("health") {
        let timeout = || Value::String(format!("{}ms", config.health.timeout.as_millis()));
        health.entry("timeout").or_insert_with(timeout);
    }
    for interface in list(whole, "xdp") {
        if let Some(rate) = interface.get("syn_rate").cloned() {
            interface.entry("syn_burst").or_insert(rate);
        }
    }
    for rule in list(whole, "rule") {
        list(rule, "pipeline").for_each(fill_step);
        let name = rule.get("name").and_then(Value::as_str).unwrap_or_default();
        let mut meant = config.policy.rules.iter();
        let meant = meant.find(|rule| rule.name.as_str() == name);
        if meant.is_some_and(|rule| rule.holdout.is_some()) {
            rule.entry("holdout").or_insert_with(|| usual.clone());
        }
        if rule.get("action").and_then(Value::as_str) == Some("enrich") {
            let steps = rule.get("pipeline").and_then(Value::as_array);
            let path = match steps.is_some_and(|steps| !steps.is_empty()) {
                true => "auto",
                false => "inline",
            };
            rule.entry("path").or_insert_with(|| path.into());
        }
    }
}

/// Fills in what depends on a step's other keys.
fn fill_step(step: &mut Table) {
    let number = |key: &str| match step.get(key) {
        Some(Value::Integer(n)) => Some(*n as f64),
        Some(Value::Float(n)) => Some(*n),
        _ => None,
    };
    if step.get("transform").and_then(Value::as_str) == Some("throttle")
        && let Some(rate) = number("rate")
    {
        step.entry("burst").or_insert(Value::Float(rate.max(1.0)));
    }
}

fn list<'a>(whole: &'a mut Table, key: &str) -> impl Iterator<Item = &'a mut Table> {
    let items = whole.get_mut(key).and_then(Value::as_array_mut);
    items
        .into_iter()
        .flatten()
        .filter_map(|item| item.as_table_mut())
}

fn mask(table: &mut Table) {
    table.iter_mut().for_each(|(_, value)| mask_value(value));
}

fn mask_value(value: &mut Value) {
    match value {
        Value::String(text) => *text = without_login(text, MASK),
        Value::Array(items) => items.iter_mut().for_each(mask_value),
        Value::Table(table) => mask(table),
        _ => {}
    }
}

/// A URL without the user and the password in it, and without its query: `mask` stands for them.
pub fn without_login(text: &str, mask: &str) -> String {
    let Some((scheme, rest)) = text.split_once("://") else {
        return text.to_owned();
    };
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let host = match authority.rsplit_once('@') {
        Some((_, host)) => format!("{mask}@{host}"),
        None => authority.to_owned(),
    };
    let path = match path.split_once('?') {
        Some((path, _)) => format!("{path}?{mask}"),
        None => path.to_owned(),
    };
    format!("{scheme}://{host}{path}")
}

/// The table as TOML as people write it: a line for each key, a rule's name first, a line for each step.
fn written(whole: &Table) -> String {
    let mut text = String::new();
    let is_list = |key: &str| LISTS.contains(&key);
    let tables = whole.iter().filter(|(key, _)| !is_list(key));
    for (name, table) in tables.filter_map(|(key, value)| Some((key, value.as_table()?))) {
        text.push_str(&format!("[{name}]\n{}\n", keys(table)));
    }
    for name in LISTS {
        let items = whole.get(name).and_then(Value::as_array);
        for table in items.into_iter().flatten().filter_map(Value::as_table) {
            text.push_str(&format!("[[{name}]]\n{}\n", keys(table)));
        }
    }
    text.truncate(text.trim_end().len());
    text + "\n"
}

fn keys(table: &Table) -> String {
    let line = |(key, value): (&String, &Value)| match (key.as_str(), value) {
        ("pipeline", Value::Array(steps)) if !steps.is_empty() => {
            let steps = steps.iter().map(|step| format!("    {},\n", shown(step)));
            format!("pipeline = [\n{}]\n", steps.collect::<String>())
        }
        _ => format!("{} = {}\n", shown_key(key), shown(value)),
    };
    in_order(table).into_iter().map(line).collect()
}

/// The keys of a table: first what it is called, last its steps.
fn in_order(table: &Table) -> Vec<(&String, &Value)> {
    let mut keys: Vec<_> = table.iter().collect();
    keys.sort_by_key(|(key, _)| {
        let is_name = ["name", "transform"].contains(&key.as_str());
        (!is_name, *key == "pipeline")
    });
    keys
}

/// A value in one line.
fn shown(value: &Value) -> String {
    match value {
        Value::Table(table) if table.is_empty() => "{}".to_owned(),
        Value::Table(table) => {
            let keys = in_order(table).into_iter();
            let keys = keys.map(|(key, value)| format!("{} = {}", shown_key(key), shown(value)));
            format!("{{ {} }}", keys.collect::<Vec<_>>().join(", "))
        }
        Value::Array(items) => {
            let items = items.iter().map(shown);
            format!("[{}]", items.collect::<Vec<_>>().join(", "))
        }
        other => other.to_string(),
    }
}

/// A key, in quotes where it needs them.
fn shown_key(key: &str) -> String {
    let is_bare = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
    match !key.is_empty() && key.chars().all(is_bare) {
        true => key.to_owned(),
        false => Value::from(key).to_string(),
    }
}

#[cfg(test)]
mod tests;
