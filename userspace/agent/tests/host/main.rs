//! The agent on its host: commands, life cycle, backends, gateways, incoming connections, containers and network namespaces.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests say what they expect by failing, and so do their helpers"
)]

mod backends;
mod cgroup_namespace;
mod checks;
mod cli;
#[path = "../common/mod.rs"]
mod common;
mod conf_d;
mod containers;
mod debug_bundle;
mod doctor;
mod documented;
mod doors;
mod dry_run;
mod escapes;
mod gateway;
mod ids;
mod incoming;
mod init;
mod kept;
mod kubernetes;
mod lifecycle;
mod limits;
mod logs;
mod names;
mod namespaces;
mod neighbours;
mod package;
mod pushed;
mod quotas;
mod reloads;
mod roles;
mod scale;
mod service_manager;
mod shadow;
mod sharing;
mod topologies;
mod upgrade;
mod windows;
mod wrong_values;
