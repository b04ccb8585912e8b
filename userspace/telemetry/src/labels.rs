//! Labels that rules give.

use policy::RuleName;

/// Whether a rule of this name is a mark's: the file may not have such names.
pub fn is_marks(rule: &str) -> bool {
    let number = rule.strip_prefix("mark-").unwrap_or_default();
    !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit())
}

/// The rule under which a flow's statements and sessions count: numbers of marks pile up, so those
/// that marks have decided count together.
pub fn series_of(rule: RuleName) -> RuleName {
    if is_marks(rule.as_str()) {
        RuleName::new("mark")
    } else {
        rule
    }
}
