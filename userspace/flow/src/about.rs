//! A pipeline as operators are shown it.

/// The description of a pipeline for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct About {
    /// The reason why a flow is in the pipeline, where not all of the rule's flows are.
    pub because: Option<&'static str>,
    /// The reason why the flow's bytes come to the agent, where the rule would have taken copies.
    pub inline: Option<String>,
    /// The steps' names, in the file's order.
    pub names: String,
}
