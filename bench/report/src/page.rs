//! A page that holds rendered results between two markers.

/// The line before the results.
pub const BEGIN: &str = "<!-- results:begin -->";
/// The line after the results.
pub const END: &str = "<!-- results:end -->";

/// The page with the results between its markers; None if the page lacks a marker.
pub fn replaced(page: &str, results: &str) -> Option<String> {
    let (before, rest) = page.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    let results = results.trim_matches('\n');
    Some(format!("{before}{BEGIN}\n\n{results}\n\n{END}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_between_the_markers_changes() {
        let page = format!("# A\n\n{BEGIN}\nold\n{END}\n\nB\n");
        let new = replaced(&page, "new\n").unwrap();
        assert_eq!(new, format!("# A\n\n{BEGIN}\n\nnew\n\n{END}\n\nB\n"));
        assert_eq!(replaced(&new, "new\n"), Some(new.clone()));
        assert_eq!(replaced("# A\n\nB\n", ""), None);
        assert_eq!(replaced(BEGIN, ""), None);
        assert_eq!(replaced(END, ""), None);
    }
}
