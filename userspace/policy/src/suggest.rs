//! The word that was probably meant by one that does not exist.

/// The beginning of what [`did_you_mean`] says.
pub const HINT: &str = ": did you mean `";

/// `: did you mean `word`?` with the nearest of these words; nothing where none is near: a third of the letters wrong,
/// or two that have changed places. An error ends with it.
pub fn did_you_mean<'w>(found: &str, words: impl IntoIterator<Item = &'w str>) -> String {
    let lower = found.to_lowercase();
    let distances = words
        .into_iter()
        .map(|word| (strsim::damerau_levenshtein(&lower, word), word));
    let near = distances.filter(|(distance, word)| *distance <= word.len().div_ceil(3));
    match near.min_by_key(|(distance, _)| *distance) {
        Some((_, word)) => format!("{HINT}{word}`?"),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_is_named_and_nothing_that_is_far() {
        let words = ["keyspace", "user", "to", "pipeline"];
        for (found, meant) in [
            ("keyspaces", "keyspace"),
            ("User", "user"),
            ("pipline", "pipeline"),
            ("ot", "to"),
        ] {
            assert_eq!(
                did_you_mean(found, words),
                format!(": did you mean `{meant}`?"),
                "{found}"
            );
        }
        assert_eq!(did_you_mean("xyzzy", words), "");
        assert_eq!(did_you_mean("to", []), "");
    }
}
