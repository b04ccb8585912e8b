//! Import cycles: files that cannot be understood without each other.
//!
//! A file imports the files that define what its `use` lines and its paths name. `mod name;` and
//! `pub use` import nothing: a facade passes names on, and who uses them imports their definer.

use petgraph::{algo::tarjan_scc, graph::DiGraph};
use syn::{
    ItemMod, ItemUse, Path,
    visit::{self, Visit},
};

use super::{
    Complaint,
    names::{self, Names},
    source::{self, File, Target},
};

/// Files that an import cycle may have: a type and its parts, in a folder of their own.
pub const MAX_FILES: usize = 4;

/// One edge of a cycle, for the complaint.
struct Import {
    from: String,
    to: String,
    names: Vec<String>,
}

/// A strongly connected set of files with more than one member, and the imports within it.
pub struct Cycle {
    files: Vec<String>,
    imports: Vec<Import>,
}

impl Cycle {
    /// Number of files.
    pub fn len(&self) -> usize {
        self.files.len()
    }
}

/// Every cycle of every target, largest first.
pub fn find(targets: &[Target]) -> Vec<Cycle> {
    let mut cycles: Vec<Cycle> = targets.iter().flat_map(of_target).collect();
    cycles.sort_by_key(|cycle| std::cmp::Reverse(cycle.len()));
    cycles
}

/// One complaint for each cycle of more than [`MAX_FILES`] files.
pub fn complaints(cycles: &[Cycle]) -> Vec<Complaint> {
    cycles
        .iter()
        .filter(|cycle| cycle.len() > MAX_FILES)
        .map(|cycle| Complaint {
            place: cycle.files.first().cloned().unwrap_or_default(),
            text: describe(cycle),
        })
        .collect()
}

fn describe(cycle: &Cycle) -> String {
    let mut text = format!(
        "{} files import each other in a circle; move what ties them to a file that imports none of \
         them:",
        cycle.len()
    );
    for import in &cycle.imports {
        let names = import.names.join(", ");
        text.push_str(&format!("\n    {} -> {}: {names}", import.from, import.to));
    }
    text
}

fn of_target(target: &Target) -> Vec<Cycle> {
    let names = Names::read(target);
    let mut graph = DiGraph::<usize, Vec<String>>::new();
    let nodes: Vec<_> = (0..target.files.len()).map(|i| graph.add_node(i)).collect();
    for (from, file) in names.files().iter().enumerate() {
        for (to, what) in imports(&names, file, from) {
            let (Some(&a), Some(&b)) = (nodes.get(from), nodes.get(to)) else {
                continue;
            };
            graph.update_edge(a, b, what);
        }
    }
    let shown = |index: usize| {
        let file = target.files.get(index);
        file.map(|file| source::shown(&file.path))
            .unwrap_or_default()
    };
    tarjan_scc(&graph)
        .into_iter()
        .filter(|members| members.len() > 1)
        .map(|members| {
            let mut files: Vec<String> = members
                .iter()
                .filter_map(|node| graph.node_weight(*node))
                .map(|index| shown(*index))
                .collect();
            files.sort();
            let mut imports: Vec<Import> = graph
                .edge_indices()
                .filter_map(|edge| Some((graph.edge_endpoints(edge)?, graph.edge_weight(edge)?)))
                .filter(|((a, b), _)| members.contains(a) && members.contains(b))
                .filter_map(|((a, b), names)| {
                    Some(Import {
                        from: shown(*graph.node_weight(a)?),
                        to: shown(*graph.node_weight(b)?),
                        names: names.clone(),
                    })
                })
                .collect();
            imports.sort_by(|a, b| (&a.from, &a.to).cmp(&(&b.from, &b.to)));
            Cycle { files, imports }
        })
        .collect()
}

/// The files that one imports, each with the names that it takes from there.
fn imports(names: &Names<'_>, file: &File, own: usize) -> Vec<(usize, Vec<String>)> {
    let mut paths = Paths {
        module: file.module.clone(),
        found: Vec::new(),
    };
    paths.visit_file(&file.syntax);
    let mut imports = std::collections::BTreeMap::<usize, Vec<String>>::new();
    for (module, path) in paths.found {
        let Some(definer) = names.definer(&module, &path).filter(|to| *to != own) else {
            continue;
        };
        let what = imports.entry(definer).or_default();
        let name = path.last().cloned().unwrap_or_default();
        if !what.contains(&name) {
            what.push(name);
        }
    }
    imports.into_iter().collect()
}

/// Collects the paths of a file, tests left out, each with the module in which it stands.
struct Paths {
    module: Vec<String>,
    found: Vec<(Vec<String>, Vec<String>)>,
}

impl<'ast> Visit<'ast> for Paths {
    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        if source::is_test(&item.attrs) || item.content.is_none() {
            return;
        }
        self.module.push(item.ident.to_string());
        visit::visit_item_mod(self, item);
        self.module.pop();
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        if names::is_reexport(&item.vis) || source::is_test(&item.attrs) {
            return;
        }
        names::flatten(&item.tree, &mut Vec::new(), &mut |path, alias| {
            if alias.is_some() {
                self.found.push((self.module.clone(), path));
            }
        });
    }

    fn visit_path(&mut self, path: &'ast Path) {
        if path.leading_colon.is_none() {
            let segments = path.segments.iter().map(|part| part.ident.to_string());
            self.found.push((self.module.clone(), segments.collect()));
        }
        visit::visit_path(self, path);
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    /// A library of files given as `module::path` and text.
    fn library(files: &[(&str, &str)]) -> Vec<Target> {
        let files = files.iter().map(|(module, text)| File {
            path: PathBuf::from(format!("{module}.rs")),
            module: module
                .split("::")
                .filter(|part| !part.is_empty())
                .map(str::to_owned)
                .collect(),
            syntax: syn::parse_file(text).unwrap(),
        });
        vec![Target {
            files: files.collect(),
        }]
    }

    fn files(targets: &[Target]) -> Vec<Vec<String>> {
        let cycles = find(targets).into_iter();
        cycles.map(|cycle| cycle.files).collect()
    }

    #[test]
    fn files_that_use_each_other_are_a_cycle() {
        let there = "use crate::b::B; pub struct A;";
        let back = "use super::a::A; pub struct B;";
        let found = files(&library(&[("", ""), ("a", there), ("b", back)]));
        assert_eq!(found, [["a.rs", "b.rs"]]);
        let found = files(&library(&[("", ""), ("a", there), ("b", "pub struct B;")]));
        assert!(found.is_empty());
    }

    #[test]
    fn a_facade_ties_nothing_and_hides_nothing() {
        let parent = "mod a; mod b; pub use a::A; pub use b::B;";
        let there = "use super::B; pub struct A;";
        let back = "pub struct B(super::A);";
        let found = files(&library(&[("", parent), ("a", there), ("b", back)]));
        assert_eq!(found, [["a.rs", "b.rs"]]);
        let found = files(&library(&[
            ("", parent),
            ("a", there),
            ("b", "pub struct B;"),
        ]));
        assert!(found.is_empty(), "{found:?}");
    }

    #[test]
    fn paths_in_code_globs_and_aliases_are_imports() {
        for there in [
            "fn a() { crate::b::b() }",
            "fn a() { super::b::b() }",
            "use crate::b; fn a() { b::b() }",
            "use crate::b as other; fn a() { other::b() }",
            "use crate::b::*; fn a() { b() }",
            "mod inner { fn a() { super::super::b::b() } }",
        ] {
            let back = "use crate::a::A; pub fn b() {}";
            let there = format!("pub struct A; {there}");
            let found = files(&library(&[("", ""), ("a", &there), ("b", back)]));
            assert_eq!(found.len(), 1, "{there}: {found:?}");
        }
    }

    #[test]
    fn tests_tie_nothing() {
        let there = "pub struct A; #[cfg(test)] mod tests { use crate::b::B; }";
        let back = "use crate::a::A; pub struct B;";
        assert!(files(&library(&[("", ""), ("a", there), ("b", back)])).is_empty());
    }

    #[test]
    fn a_cycle_past_the_bound_names_its_imports() {
        let names: Vec<String> = (0..=MAX_FILES).map(|i| format!("m{i}")).collect();
        let texts: Vec<String> = (0..=MAX_FILES)
            .map(|i| {
                format!(
                    "use crate::m{}::f; pub fn f() {{}}",
                    (i + 1) % (MAX_FILES + 1)
                )
            })
            .collect();
        let pairs = names.iter().zip(&texts);
        let list: Vec<(&str, &str)> = pairs.map(|(n, t)| (n.as_str(), t.as_str())).collect();
        let complaints = complaints(&find(&library(&list)));
        assert_eq!(complaints.len(), 1);
        assert!(complaints[0].text.contains("m0.rs -> m1.rs: f"));
        let open: Vec<(&str, &str)> = list.iter().copied().skip(1).collect();
        assert!(find(&library(&open)).is_empty());
    }

    #[test]
    fn re_exports_in_a_circle_end() {
        let a = "pub use crate::b::X;";
        let b = "pub use crate::a::X; fn f(_: X) {}";
        assert!(files(&library(&[("", ""), ("a", a), ("b", b)])).is_empty());
    }
}
