//! A word of a Redis command: text, with binds in braces (`{key}`, `user:{key}`).

use anyhow::Context;

use super::Bind;

/// A piece of a word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// A text as it stands.
    Literal(String),
    /// A value that is another one each time.
    Bind(Bind),
}

/// Splits a word into its parts.
///
/// # Errors
/// A brace is not closed, or what it holds is no value.
pub fn parse(word: &str) -> anyhow::Result<Vec<Part>> {
    let mut parts = Vec::new();
    let mut rest = word;
    while let Some((before, after)) = rest.split_once('{') {
        let (bind, behind) = after
            .split_once('}')
            .with_context(|| format!("{word}: a brace is not closed"))?;
        if !before.is_empty() {
            parts.push(Part::Literal(before.into()));
        }
        let bind = Bind::try_from(bind.to_owned()).map_err(anyhow::Error::msg)?;
        parts.push(Part::Bind(bind));
        rest = behind;
    }
    if !rest.is_empty() || parts.is_empty() {
        parts.push(Part::Literal(rest.into()));
    }
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_text_and_binds() {
        let literal = |text: &str| Part::Literal(text.into());
        assert_eq!(parse("SET").unwrap(), [literal("SET")]);
        assert_eq!(parse("{key}").unwrap(), [Part::Bind(Bind::Key)]);
        assert_eq!(
            parse("a:{key:text}:b{text:3}").unwrap(),
            [
                literal("a:"),
                Part::Bind(Bind::KeyText),
                literal(":b"),
                Part::Bind(Bind::Text(3))
            ]
        );
        assert_eq!(parse("").unwrap(), [literal("")]);
        assert!(parse("{key").is_err());
        assert!(parse("{kee}").is_err());
    }
}
