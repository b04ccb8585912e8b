//! A page that holds results between two markers.

/// Before them.
pub const BEGIN: &str = "<!-- results:begin -->";
/// After them.
pub const END: &str = "<!-- results:end -->";

/// The page with this between its markers; None where it has none.
pub fn replaced(page: &str, between: &str) -> Option<String> {
    let (before, rest) = page.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    let between = between.trim_matches('\n');
    Some(format!("{before}{BEGIN}\n\n{between}\n\n{END}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_between_the_markers_changes() {
        let page = format!("# A\n\n{BEGIN}\nold\n{END}\n\nB\n");
        let new = replaced(&page, "new\n").unwrap();
        assert_eq!(new, format!("# A\n\n{BEGIN}\n\nnew\n\n{END}\n\nB\n"));
        assert_eq!(replaced(&new, "new\n"), Some(new));
        assert_eq!(replaced("no markers", ""), None);
        assert_eq!(replaced(END, ""), None);
    }
}
