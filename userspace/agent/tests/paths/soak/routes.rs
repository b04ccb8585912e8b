//! Routes of CQL clients: each a rule and a database of its own, and what may disturb its flows.

use super::faults::Fault;

/// See the module.
#[derive(Debug)]
pub struct Route {
    pub name: &'static str,
    /// The rule, but for its name and address. `DISK` stands for the folder of the journal.
    rule: &'static str,
    pub needs: Needs,
    /// Whether a step refuses statements that change the schema.
    pub is_guarded: bool,
}

/// The needs of flows, to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// Nobody but their database.
    Nobody,
    /// The agent, to be told of bytes that came too early for an edge.
    Nudges,
    /// The keeper, if the kernel carries them when the agent ends; otherwise the agent.
    Keeper,
    /// The agent.
    Agent,
    /// The agent, and room for its journal.
    Journal,
    /// The agent, and that no mark denies them.
    Consent,
    /// The agent, and a database that dies now and then.
    Database,
}

impl Needs {
    /// Whether a fault takes away what flows need, for a moment or for good. `kernel_carries`: the kernel carried all spliced
    /// flows, and the keeper held them, when it began.
    pub fn are_disturbed_by(self, fault: Fault, kernel_carries: bool) -> bool {
        let agent = matches!(
            fault,
            Fault::Kill | Fault::Memory | Fault::Stop | Fault::Descriptors
        );
        match self {
            Self::Nobody => false,
            // They wait until the agent runs, and can look, again. One that is dead has the keeper in its place at once.
            Self::Nudges => matches!(fault, Fault::Stop | Fault::Descriptors),
            // An agent from which another has taken over ends the flows that no keeper has, when it has drained for as long as it
            // may. A keeper ends those that no agent has.
            Self::Keeper => {
                let is_theirs = matches!(fault, Fault::Upgrade | Fault::Keeper);
                (agent || is_theirs) && !kernel_carries
            }
            Self::Agent => agent,
            Self::Journal => agent || fault == Fault::Disk,
            Self::Consent => agent || fault == Fault::Mark,
            Self::Database => agent || fault == Fault::Database,
        }
    }
}

const fn route(name: &'static str, needs: Needs, rule: &'static str) -> Route {
    Route {
        name,
        rule,
        needs,
        is_guarded: false,
    }
}

/// Makes a route with a guard.
const fn guarded(name: &'static str, needs: Needs, rule: &'static str) -> Route {
    Route {
        is_guarded: true,
        ..route(name, needs, rule)
    }
}

pub const ROUTES: [Route; 9] = [
    route("untouched", Needs::Nobody, "action = \"bypass\""),
    route("observed", Needs::Nobody, "action = \"observe\""),
    route(
        "tapped",
        Needs::Nobody,
        "action = \"enrich\"\npipeline = [{ transform = \"stats\" }, { transform = \"count\" }]",
    ),
    route(
        "local",
        Needs::Nobody,
        "action = \"bypass\"\nshortcut = true",
    ),
    route(
        "spliced",
        Needs::Keeper,
        "action = \"bypass\"\ndriver = [\"*\"]\npath = \"inline\"\nshortcut = \"client\"",
    ),
    guarded(
        "changed",
        Needs::Agent,
        "action = \"enrich\"\nfail = \"closed\"\nshortcut = false\npipeline = [\n\
         { transform = \"throttle\", rate = RATE, mode = \"overloaded\" },\n\
         { transform = \"guard\", refuse = [\"ddl\"] },\n\
         { transform = \"consistency\", at_least = \"ONE\" },\n\
         { transform = \"stats\" },\n]",
    ),
    guarded(
        "audited",
        Needs::Journal,
        "action = \"enrich\"\nfail = \"closed\"\nshortcut = false\npipeline = [\n\
         { transform = \"guard\", refuse = [\"ddl\"] },\n\
         { transform = \"audit\", file = \"DISK/audit.log\", max_bytes = 1048576, keep = 1 },\n]",
    ),
    route(
        "marked",
        Needs::Consent,
        "action = \"enrich\"\nfail = \"closed\"\nshortcut = false",
    ),
    guarded(
        "mortal",
        Needs::Database,
        "action = \"enrich\"\nfail = \"closed\"\nshortcut = false\n\
         pipeline = [{ transform = \"guard\", refuse = [\"ddl\"] }]",
    ),
];

/// The place of a route in [`ROUTES`].
pub fn place(name: &str) -> usize {
    ROUTES.iter().position(|route| route.name == name).unwrap()
}

impl Route {
    /// The rule, for a database at this port. `rate`: that of the throttle, which a reload changes.
    pub fn rule(&self, port: u16, disk: &str, rate: u32) -> String {
        let rule = self.rule.replace("DISK", disk);
        let rule = rule.replace("RATE", &rate.to_string());
        format!(
            "[[rule]]\nname = \"{}\"\nto = [\":{port}\"]\n{rule}\n",
            self.name
        )
    }
}
