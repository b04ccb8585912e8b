//! [`Whom`]: for whom a guard is there, by user or by driver.

use policy::TextPattern;

/// Names that are meant, and names that are not.
#[derive(Debug)]
pub(super) struct Whom {
    /// Names that are meant; without any: all.
    only: Vec<TextPattern>,
    not: Vec<TextPattern>,
}

impl Whom {
    /// Reads the two lists under these keys.
    pub(super) fn parse(keys: [&str; 2], lists: [&[String]; 2]) -> Result<Self, String> {
        let patterns = |key: &str, texts: &[String]| {
            let pattern = |text: &String| {
                TextPattern::parse(text).ok_or_else(|| {
                    format!("{key}: expected a name, or its beginning and `*`; found {text:?}")
                })
            };
            texts.iter().map(pattern).collect::<Result<Vec<_>, _>>()
        };
        let ([only_key, not_key], [only, not]) = (keys, lists);
        Ok(Self {
            only: patterns(only_key, only)?,
            not: patterns(not_key, not)?,
        })
    }

    /// Whether somebody of this name is meant. Whose name is not known always is.
    pub(super) fn holds_for(&self, name: Option<&str>) -> bool {
        let Some(name) = name else {
            return true;
        };
        let has = |patterns: &[TextPattern]| patterns.iter().any(|pattern| pattern.holds(name));
        (self.only.is_empty() || has(&self.only)) && !has(&self.not)
    }
}
