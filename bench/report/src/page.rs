//! A page that holds results between two markers.

/// What stands between markers, by their name.
#[derive(Clone, Copy, Debug)]
pub enum Part {
    /// Of everything that is compared.
    Results,
    /// Of the ways in which bytes travel.
    Paths,
    /// Of other proxies.
    Peers,
    /// Of the ways through a gateway.
    Gateway,
    /// Of what enrichment costs.
    Enrichment,
}

impl Part {
    /// The markers before and after it.
    pub fn markers(self) -> (&'static str, &'static str) {
        match self {
            Self::Results => ("<!-- results:begin -->", "<!-- results:end -->"),
            Self::Paths => ("<!-- paths:begin -->", "<!-- paths:end -->"),
            Self::Peers => ("<!-- peers:begin -->", "<!-- peers:end -->"),
            Self::Gateway => ("<!-- gateway:begin -->", "<!-- gateway:end -->"),
            Self::Enrichment => ("<!-- enrichment:begin -->", "<!-- enrichment:end -->"),
        }
    }
}

/// The page with this between its markers; None where it has none.
pub fn replaced(page: &str, part: Part, between: &str) -> Option<String> {
    let (begin, end) = part.markers();
    let (before, rest) = page.split_once(begin)?;
    let (_, after) = rest.split_once(end)?;
    let between = between.trim_matches('\n');
    Some(format!("{before}{begin}\n\n{between}\n\n{end}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_between_the_markers_changes() {
        let (begin, end) = Part::Results.markers();
        let page = format!("# A\n\n{begin}\nold\n{end}\n\nB\n");
        let new = replaced(&page, Part::Results, "new\n").unwrap();
        assert_eq!(new, format!("# A\n\n{begin}\n\nnew\n\n{end}\n\nB\n"));
        assert_eq!(replaced(&new, Part::Results, "new\n"), Some(new.clone()));
        assert_eq!(replaced(&new, Part::Paths, ""), None);
        assert_eq!(replaced(end, Part::Results, ""), None);
    }
}
